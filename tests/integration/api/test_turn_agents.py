"""The agent of a turn over HTTP: who names it, which version it has, and what is refused."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
import pytest

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.integration.api.conftest import Api, problem_of
from tests.support.claiming import claim_stage


class Desk:
    """A tenant of its own that stores agents, speaks in conversations and looks at its jobs."""

    def __init__(self, api: Api, **config: Any) -> None:
        self.tenant = f"desk-{new_id()}"[:40]
        self.api = api

        async def work(database: Database) -> str:
            await TenantStore(database).create(self.tenant, "", TenantConfig(**config))
            scopes = frozenset({KeyScope.JOBS, KeyScope.MESSAGES})
            return (await ApiKeyStore(database).create(self.tenant, "ci", scopes, None))[1]

        self.headers = {"Authorization": f"Bearer {api.jobs.run(work)}"}

    def call(self, method: str, path: str, **given: Any) -> httpx.Response:
        headers = {**self.headers, **given.pop("headers", {})}
        return self.api.http.request(method, path, headers=headers, **given)

    def keeps(self, name: str, description: str = "You help.", **fields: Any) -> int:
        """Store an agent; returns its version."""
        found = self.call("PUT", f"/agents/{name}", json={"name": name, "description": description, **fields})
        assert found.status_code in (200, 201), found.text
        return int(found.json()["version"])

    def send(self, text: str = "hello", *, headers: dict[str, str] | None = None, **changed: Any) -> httpx.Response:
        raw = {"tenant_id": self.tenant, "channel": "api", "from": {"external_id": "ann"}, "content": {"text": text}}
        path = "/messages/inbound?async_processing=true"
        return self.call("POST", path, json={**raw, "thread": str(uuid4()), **changed}, headers=headers or {})

    def job(self, sent: httpx.Response) -> dict[str, Any]:
        assert sent.status_code in (201, 202), sent.text
        answer = sent.json()
        found: dict[str, Any] = self.call("GET", f"/jobs/{answer.get('job_id') or answer['task_id']}").json()
        return found

    def agent(self, sent: httpx.Response) -> str | None:
        """Return which agent the job of a message has, as `name@version`."""
        found = self.job(sent)["agent"]
        return None if found is None else f"{found['name']}@{found['version']}"

    def ends(self, sent: httpx.Response) -> None:
        """Let the turn of a message end."""
        job_id = self.job(sent)["id"]

        async def work(database: Database) -> None:
            store = PostgresJobStore(database, new_id(), as_called)
            claim = await claim_stage(store, job_id, [JobStatus.QUEUED])
            assert claim is not None
            assert await store.end_job(claim, JobStatus.COMPLETED, "done", None, [])
            await store.serve_end(job_id)

        self.api.jobs.run(work)


def test_the_nearest_of_message_conversation_channel_and_tenant_names_the_agent(api: Api) -> None:
    desk = Desk(api, agent="of-tenant", channel_agents={"web": "of-channel"})
    for name in ("of-tenant", "of-channel", "of-conversation", "of-message"):
        desk.keeps(name)
    begun = desk.call("POST", "/conversations", json={"channel": "web", "agent": "of-conversation"})
    assert (begun.status_code, begun.headers["Location"]) == (201, f"/conversations/{begun.json()['id']}")
    assert begun.json()["agent"] == "of-conversation"
    within = {"channel": "web", "thread": begun.json()["thread"]}

    assert desk.agent(desk.send()) == "of-tenant@1"
    assert desk.agent(desk.send(channel="web")) == "of-channel@1"
    assert desk.agent(desk.send(**within)) == "of-conversation@1"
    assert desk.agent(desk.send(**within, agent="of-message")) == "of-message@1"
    assert desk.agent(desk.send(**within)) == "of-conversation@1", "a message names it for its own turn alone"
    path = f"/conversations/{begun.json()['id']}"
    changed = desk.call("PATCH", path, json={"agent": None}).json()
    assert changed["agent"] is None
    assert changed["agent_versions"] == {"of-conversation": 1, "of-message": 1}
    assert desk.agent(desk.send(**within)) == "of-channel@1"
    assert desk.agent(desk.call("POST", "/tasks", json={"goal": "g"})) == "of-tenant@1"
    assert desk.agent(desk.call("POST", "/tasks", json={"goal": "g", "agent": "of-message@1"})) == "of-message@1"


def test_header_and_metadata_name_the_agent_where_the_field_does_not(api: Api) -> None:
    desk = Desk(api)
    for name in ("field", "header", "metadata"):
        desk.keeps(name)
    header, metadata = {"X-Agent-Schema-Name": "header"}, {"agent": "metadata"}

    assert desk.agent(desk.send(headers=header, metadata=metadata, agent="field")) == "field@1"
    assert desk.agent(desk.send(headers=header, metadata=metadata)) == "header@1"
    assert desk.agent(desk.send(metadata=metadata)) == "metadata@1"
    assert desk.agent(desk.send()) is None
    task = {"goal": "g", "metadata": metadata}
    assert desk.agent(desk.call("POST", "/tasks", json=task)) == "metadata@1"
    assert desk.agent(desk.call("POST", "/tasks", json=task, headers=header)) == "header@1"
    begun = desk.call("POST", "/conversations", json={}, headers=header).json()
    assert (begun["agent"], begun["channel"]) == ("header", "api")


def test_a_conversation_keeps_the_version_that_it_began_with(api: Api) -> None:
    desk = Desk(api, agent="helper")
    desk.keeps("helper")
    within, follower = {"thread": "kept"}, {"thread": "followed"}
    desk.ends(desk.send(**within))
    begun = desk.call("POST", "/conversations", json={**follower, "agent": "helper", "follow_agent": True}).json()
    assert begun["follow_agent"] is True
    desk.ends(desk.send(**follower))
    assert desk.keeps("helper", "You help more.") == 2

    assert desk.agent(desk.send(thread="new")) == "helper@2"
    kept = desk.send(**within)
    assert desk.agent(kept) == "helper@1"
    desk.ends(kept)
    assert desk.agent(desk.send(**follower)) == "helper@2"
    again = desk.send(**within, agent="helper@2")
    assert desk.agent(again) == "helper@2", "a message may name a version"
    desk.ends(again)
    assert desk.agent(desk.send(**within)) == "helper@1", "and the conversation keeps its own"
    assert desk.call("DELETE", "/agents/helper").status_code == 204
    assert desk.agent(desk.send(**within)) == "helper@1", "what is retired goes on where it has begun"
    problem_of(desk.send(thread="newer"), 404, "not_found")
    problem_of(desk.send(**within, agent="helper@2"), 404, "not_found")

    path = f"/conversations/{again.json()['conversation_id']}"
    assert desk.keeps("helper", "You are back.") == 3
    assert desk.call("PATCH", path, json={"agent": "helper@3"}).json()["agent_versions"] == {"helper": 3}
    assert desk.agent(desk.send(**within)) == "helper@3"
    assert desk.call("PATCH", path, json={"follow_agent": True}).json()["follow_agent"] is True
    assert desk.keeps("helper", "You follow.") == 4
    assert desk.agent(desk.send(**within)) == "helper@4"
    assert desk.call("PATCH", path, json={"follow_agent": False}).json()["agent_versions"] == {"helper": 4}


def test_a_conversation_of_its_own_agent_needs_none_of_the_tenant(api: Api) -> None:
    """The tenant's agent that is not there was looked for first, and the message was refused."""
    desk = Desk(api, agent="nowhere")
    desk.keeps("somewhere")
    begun = desk.call("POST", "/conversations", json={"agent": "somewhere"}).json()

    assert desk.agent(desk.send(conversation_id=begun["id"], thread=begun["thread"])) == "somewhere@1"
    problem_of(desk.send(), 404, "not_found")
    assert desk.call("GET", "/conversations").json()["items"] == [
        desk.call("GET", f"/conversations/{begun['id']}").json()
    ], "a message that is refused begins no conversation"


def test_the_job_of_a_turn_is_as_the_agents_document_says(api: Api) -> None:
    desk = Desk(api, agent="looper", model="openai:gpt-4o", planning_enabled=False)
    desk.keeps("looper", strategy="loop", model="anthropic:claude-sonnet-4-5", loop={"max_rounds": 3})
    desk.keeps("plain")

    def stored(sent: httpx.Response) -> tuple[str, str, int]:
        (row,) = api.jobs.execute("SELECT strategy, model, limits FROM jobs WHERE id = %s", desk.job(sent)["id"])
        return row["strategy"], row["model"], row["limits"].get("max_rounds", Limits().max_rounds)

    assert stored(desk.send()) == ("loop", "anthropic:claude-sonnet-4-5", 3)
    of_tenant = ("react", "openai:gpt-4o", Limits().max_rounds)
    assert stored(desk.send(agent="plain")) == of_tenant, "the tenant's, where the document says nothing"
    assert stored(desk.call("POST", "/tasks", json={"goal": "g", "agent": "plain"})) == of_tenant


@pytest.mark.parametrize(
    ("named", "status", "code", "told"),
    [
        ({"agent": "nobody"}, 404, "not_found", "does not exist"),
        ({"agent": "helper@9"}, 404, "not_found", "has no version 9; there are 1"),
        ({"agent": "helper@new"}, 404, "not_found", "'helper@new' does not exist; there are helper"),
        ({"metadata": {"agent": {"name": "helper"}}}, 422, "invalid_request", "metadata.agent"),
        ({"headers": {"X-Agent-Schema-Name": "helper@"}}, 404, "not_found", "'helper@' does not exist"),
    ],
)
def test_what_names_no_agent_is_refused_and_stores_nothing(
    api: Api, named: dict[str, Any], status: int, code: str, told: str
) -> None:
    desk = Desk(api)
    desk.keeps("helper")

    assert told in problem_of(desk.send(**named), status, code)["detail"]
    assert told in problem_of(desk.call("POST", "/tasks", **_body({"goal": "g"}, named)), status, code)["detail"]
    begun = desk.call("POST", "/conversations", **_body({}, named))
    assert told in problem_of(begun, status, code)["detail"]
    assert desk.call("GET", "/conversations").json()["items"] == []


def _body(body: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    headers = named.get("headers", {})
    return {"json": {**body, **{key: value for key, value in named.items() if key != "headers"}}, "headers": headers}


def test_a_conversation_that_cannot_begin_so_is_refused(api: Api) -> None:
    desk = Desk(api)
    desk.keeps("helper")

    def begin(**body: Any) -> httpx.Response:
        return desk.call("POST", "/conversations", json=body)

    assert begin(thread="t").status_code == 201
    problem_of(begin(thread="t"), 409, "conflict")
    assert begin(thread="t", channel="web").status_code == 201
    assert "known channels" in problem_of(begin(channel="fax"), 422, "invalid_request")["detail"]
    told = problem_of(begin(agent="helper@1", follow_agent=True), 422, "invalid_request")["detail"]
    assert "follow_agent" in told
    kept = begin(agent="helper@1").json()
    assert (kept["agent"], kept["agent_versions"]) == ("helper", {"helper": 1})
    changed = desk.call("PATCH", f"/conversations/{kept['id']}", json={"agent": "nobody"})
    problem_of(changed, 404, "not_found")

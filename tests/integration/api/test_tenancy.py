"""What belongs to one tenant is not there for another: every route, with every id, neither shows nor changes it.

The routes are those of `/openapi.json`. A parameter of a path that this does not know fails the test: say in
`Belongings.ids` whose id it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from planq.api.access.scopes import opening_of
from planq.api.intake.message_flow import plan_id_of
from planq.shared.kernel.states import Strategy
from planq.shared.platform.database import Database
from planq.shared.schema import tables  # noqa: F401  (fills the metadata)
from planq.shared.schema.tables import METADATA
from planq.shared.subjects.conversations.store import ConversationStore
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.directory import TenantStore
from planq.shared.subjects.tenants.keys import KeyScope
from tests.integration.api import control
from tests.integration.api.conftest import SECRET_KEY, TOOLS, Api, MakeApi, problem_of, search
from tests.integration.api.control import JobDriver, begun, call
from tests.support.conversations import message
from tests.support.waiting import eventually

OWNER, RIVAL = "acme", "rival"
SECRET = "the colour of the vault"
SCOPES = frozenset({KeyScope.JOBS, KeyScope.MESSAGES})
TABLES = [table.name for table in METADATA.sorted_tables if "tenant_id" in table.columns and table.name != "api_keys"]
"""All but the keys, which note that they were used."""

DOCUMENT = {"name": "clerk", "description": SECRET, "instructions": SECRET}
LINE = json.dumps({"custom_id": SECRET, "body": {"input": SECRET}})
JSON_LINES = {"Content-Type": "application/jsonl"}
BODIES: Mapping[tuple[str, str], dict[str, Any]] = {
    ("post", "/jobs/{job_id}/steps/{index}/settle"): {"json": {"outcome": "did_not_happen"}},
    ("post", "/elicitations/{elicitation_id}"): {"json": {"action": "decline"}},
    ("post", "/agents/{agent_id}/executions"): {"json": {"prompt": "go"}},
    ("post", "/agents/{agent_id}/executions/async"): {"json": {"prompt": "go"}},
    ("post", "/plans/{plan_id}/refine"): {"json": {"current_step": 1}},
    ("patch", "/conversations/{conversation_id}"): {"json": {"policy": "reject"}},
    ("patch", "/insights/{insight_id}"): {"json": {"is_pinned": True}},
    ("patch", "/endpoints/{endpoint_id}"): {"json": {"description": "mine"}},
    ("get", "/search"): {"params": {"id": SECRET}},  # a custom_id
    ("get", "/events"): {"params": {"follow": "false", "after": "0-0"}},
    ("get", "/conversations/{conversation_id}/events"): {"params": {"follow": "false"}},
}
"""What a request has to bring so that nothing but the id is wrong with it, and so that its answer has an end."""

OF_OPERATORS = {("get", "/jobs/{job_id}/steps/{index}/tracebacks")}
"""What neither tenant's key opens here: it has not the scope."""

BY_NAME = {("put", "/agents/{agent_id}"), ("put", "/skills/{skill_id}")}
"""Names are each tenant's own: what these store is the caller's, whoever else uses the name."""


class Belongings:
    """What one tenant has, and the way to ask for it in its name or in another's."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.keys = {tenant: self._key(tenant) for tenant in (OWNER, RIVAL)}
        control.publish(api, [*control.TOOLS, *TOOLS])
        api.http.headers["Authorization"] = self.keys[OWNER]
        self.ids = {**self._documents(), **self._jobs(), **self._conversation(), **self._webhooks()}

    def _key(self, tenant: str) -> str:
        async def work(database: Database) -> str:
            await TenantStore(database).create(tenant, tenant, TenantConfig())
            _, text = await ApiKeyStore(database).create(tenant, "test", SCOPES, None)
            return text

        return f"Bearer {self.api.jobs.run(work)}"

    def _documents(self) -> dict[str, str]:
        http = self.api.http
        assert http.put("/skills/tact", content=SECRET, headers={"Content-Type": "text/markdown"}).status_code == 201
        assert http.put("/agents/clerk", json=DOCUMENT).status_code == 201
        schedule = uuid4()
        self.api.jobs.execute(
            "INSERT INTO schedules (id, tenant_id, input, next_at) VALUES (%s, %s, %s, now() + interval '1 hour')",
            schedule,
            OWNER,
            SECRET,
        )
        insight = uuid4()
        self.api.jobs.execute(
            "INSERT INTO insights (id, tenant_id, kind, digest, lesson, body, search, expires_at) "
            "VALUES (%s, %s, 'course', 'd', %s, '{}', '', now() + interval '1 day')",
            insight,
            OWNER,
            SECRET,
        )
        batch = http.post("/batches", content=LINE, params={"start": "false"}, headers=JSON_LINES)
        assert batch.status_code == 202, batch.text
        path = f"/batches/{batch.json()['id']}"
        eventually(lambda: http.get(path).json()["status"] == "in_progress", what="the batch is validated")
        action = http.post("/job-actions", json={"act": "pause", "filter": {"words": SECRET}})
        assert action.status_code == 202, action.text
        return {
            "agent_id": "clerk",
            "skill_id": "tact",
            "schedule_id": str(schedule),
            "insight_id": str(insight),
            "batch_id": batch.json()["id"],
            "action_id": action.json()["id"],
        }

    def _jobs(self) -> dict[str, str]:
        asks = begun(self.api, call("sign", SECRET), input=SECRET)
        asks.ask(0)
        (question,) = self.api.http.get(f"/jobs/{asks.id}/elicitations").json()["items"]
        done = JobDriver(self.api, self.api.submit({"input": SECRET})["id"])
        output = {"artifact_id": "report", "artifact": {"text": SECRET}, "_metadata": {}}
        plan = {"type": "tool_calls", "calls": [search(SECRET)]}
        self.api.jobs.run_plan(done.id, plan, {0: output})
        done.answer(SECRET)
        self.asking = {"job_id": asks.id, "index": "0"}
        plan_id = str(plan_id_of(UUID(done.id)))
        made = {"job_id": done.id, "task_id": done.id, "plan_id": plan_id, "index": "0"}
        made |= {"artifact_id": "report", "elicitation_id": question["id"]}
        execution = self.api.http.post("/agents/clerk/executions/async", json={"prompt": SECRET})
        assert execution.status_code == 202, execution.text
        return {**made, "exec_id": execution.json()["exec_id"]}

    def _webhooks(self) -> dict[str, str]:
        http = self.api.http
        said = {"url": "https://example.com/hook", "events": ["job.*"], "description": SECRET}
        made = http.post("/endpoints", json=said)
        assert made.status_code == 201, made.text
        tried = http.post(f"/endpoints/{made.json()['id']}/test")
        return {"endpoint_id": made.json()["id"], "delivery_id": tried.json()["id"]}

    def _conversation(self) -> dict[str, str]:
        received = self.api.jobs.run(
            lambda database: ConversationStore(database).receive(
                message(SECRET, tenant=OWNER, strategy=Strategy.REACT, source_id="m-1")
            )
        )
        self.turn = str(received.job_id)
        return {"conversation_id": str(received.conversation_id), "message_id": str(received.message_id)}

    def operations(self) -> Iterator[tuple[str, str]]:
        """Yield every operation below no scope that an operator has, last what removes and what stores."""
        paths = self.api.http.get("/openapi.json").json()["paths"]
        found = [(method, path) for path, item in paths.items() for method in item if path.split("/")[1] != "tenants"]
        yield from sorted(found, key=lambda one: (one[0] == "put", one[0] == "delete", one))

    def ask(self, tenant: str, method: str, path: str, *, ids: Mapping[str, str]) -> httpx.Response:
        """Send a request with these ids in the place of the path's parameters."""
        named = re.sub(r"\{(\w+)(?::path)?\}", lambda found: ids[found[1]], path)
        given = {"headers": {"Authorization": self.keys[tenant]}, **BODIES.get((method, path), {})}
        if (method, path) == ("put", "/agents/{agent_id}"):
            given["json"] = {**DOCUMENT, "description": "another", "instructions": "another"}
        elif (method, path) == ("put", "/skills/{skill_id}"):
            given |= {"content": "another", "headers": {**given["headers"], "Content-Type": "text/markdown"}}
        return self.api.http.request(method, named, **given)

    def rows(self) -> dict[str, list[str]]:
        """Return everything that the tables hold of the owner."""
        return {
            table: sorted(
                row["row"]
                for row in self.api.jobs.execute(
                    f"SELECT to_jsonb(t)::text AS row FROM {table} t WHERE tenant_id = %s", OWNER
                )
            )
            for table in TABLES
        }


@pytest.fixture
def owned(make_api: MakeApi) -> Belongings:
    return Belongings(make_api(max_wait_seconds=0.1, secret_keys=SECRET_KEY))


def _code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_no_route_shows_or_changes_what_belongs_to_another_tenant(owned: Belongings) -> None:
    before = owned.rows()
    assert [table for table in ("jobs", "steps", "events", "questions", "artifacts") if not before[table]] == []
    strangers = {name: str(uuid4()) if name.endswith("_id") else "0" for name in owned.ids}
    checked = 0
    for method, path in owned.operations():
        answer = owned.ask(RIVAL, method, path, ids=owned.ids)
        assert SECRET not in answer.text, f"{method} {path}"
        if "{" in path and (method, path) not in BY_NAME | OF_OPERATORS:
            assert _code(answer) == (404, "not_found"), f"{method} {path}: {answer.text}"
            nobody = owned.ask(RIVAL, method, path, ids=strangers)
            assert _code(nobody) == _code(answer), "what is another's is refused as what is nobody's"
            checked += 1
    assert checked >= 20
    assert owned.rows() == before


@pytest.mark.parametrize("scope", list(KeyScope))
def test_no_scope_of_another_tenants_key_opens_a_route_to_it(owned: Belongings, scope: KeyScope) -> None:
    """Where the scope does not open a route it is 403, whoever asks; where it does, 404 as for what is nobody's."""
    _, text = owned.api.jobs.run(
        lambda database: ApiKeyStore(database).create(RIVAL, "scoped", frozenset({scope}), None)
    )
    owned.keys[RIVAL] = f"Bearer {text}"
    before = owned.rows()
    opened = 0
    for method, path in owned.operations():
        answer = owned.ask(RIVAL, method, path, ids=owned.ids)
        assert SECRET not in answer.text, f"{method} {path}"
        if "{" not in path or (method, path) in BY_NAME:
            continue
        named = re.sub(r"\{(\w+)(?::path)?\}", lambda found: owned.ids[found[1]], path)
        is_open = scope in opening_of(method.upper(), named).scopes
        expected = (404, "not_found") if is_open else (403, "insufficient_scope")
        assert _code(answer) == expected, f"{method} {path}: {answer.text}"
        opened += is_open
    assert opened >= {KeyScope.JOBS: 20, KeyScope.MESSAGES: 10, KeyScope.APPROVE: 2, KeyScope.ADMIN: 2}[scope]
    assert owned.rows() == before


def test_the_same_requests_find_what_is_the_callers_own(owned: Belongings) -> None:
    for method, path in owned.operations():
        if "{" in path and (method, path) not in OF_OPERATORS:
            ids = {**owned.ids, **(owned.asking if "settle" in path else {})}
            ids |= {"job_id": owned.turn} if path.startswith("/messages/") else {}
            answer = owned.ask(OWNER, method, path, ids=ids)
            assert answer.status_code not in (403, 404, 422), f"{method} {path}: {answer.text}"


def test_an_id_is_found_by_whose_it_is_alone(owned: Belongings) -> None:
    kinds = {"job_id": "job", "plan_id": "plan", "conversation_id": "conversation", "batch_id": "batch"}
    kinds |= {"schedule_id": "schedule", "elicitation_id": "question", "action_id": "job_action"}
    asked = {owned.ids[name]: kind for name, kind in kinds.items()} | {SECRET: "line"}
    asked |= {f"{owned.ids['job_id']}.r0.s0.1": "step", f"{owned.ids['job_id']}/0": "step"}
    for text, kind in asked.items():
        for tenant, found in ((OWNER, [kind]), (RIVAL, [])):
            given = {"params": {"id": text}, "headers": {"Authorization": owned.keys[tenant]}}
            answer = owned.api.http.get("/search", **given)
            assert [one["kind"] for one in answer.json()["items"]] == found, f"{text} of {tenant}: {answer.text}"


def test_requests_that_name_what_belongs_to_another_tenant_do_not_find_it(owned: Belongings) -> None:
    owned.api.submit({"input": "mine"}, **{"Idempotency-Key": "same"})
    owned.api.http.headers["Authorization"] = owned.keys[RIVAL]
    before = owned.rows()

    problem_of(owned.api.http.post("/jobs", json={"input": "x", "agent": "clerk"}), 404, "not_found")
    with_skill = {"input": "x", "strategy": "loop", "loop": {"prompt": {"name": "tact"}}}
    refused = problem_of(owned.api.http.post("/jobs", json=with_skill), 422, "invalid_request")
    assert "skill 'tact' does not exist; there are none" in refused["detail"]
    assert owned.api.http.get("/elicitations", params={"job": owned.ids["job_id"]}).json()["items"] == []
    said = {"channel": "api", "thread": "t", "source_message_id": "m-1", "async_processing": True}
    said |= {"from": {"external_id": "eve"}, "content": {"text": "hello"}}
    inbound = owned.api.http.post("/messages/inbound", json={**said, "tenant_id": OWNER})
    problem_of(inbound, 403, "foreign_tenant")
    inbound = owned.api.http.post("/messages/inbound", json={**said, "tenant_id": RIVAL})
    assert inbound.status_code == 202, inbound.text
    (conversation,) = owned.api.http.get("/conversations").json()["items"]
    assert (conversation["thread"], conversation["id"] == owned.ids["conversation_id"]) == ("t", False)
    another = owned.api.submit({"input": "mine"}, **{"Idempotency-Key": "same"})
    assert another["input"] == "mine"
    assert owned.api.http.get(f"/jobs/{another['id']}").status_code == 200
    assert owned.rows() == before

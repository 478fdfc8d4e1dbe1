"""Who may answer what a turn asks, by use: people write over HTTP, and a real engine runs what they want."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from planq.shared.platform.database import Database
from planq.shared.settings.settings import Settings
from planq.shared.subjects.tenants.api_keys import ApiKeyStore
from planq.shared.subjects.tenants.keys import KeyScope
from planq.worker.tools import ToolContext, tool
from tests.integration.api.conftest import Api, problem_of
from tests.support.harness import Harness, ScriptedModel, make_tool
from tests.support.servers import TestPostgres
from tests.support.waiting import eventually

ADA, BOB = "ada", "bob"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Shop:
    """A server with two tools, and the people and programs that speak to it; one engine works on what they want."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.paid: list[int] = []
        self.booked: list[str] = []
        self.thread = str(uuid4())
        self.chat = self.key(KeyScope.MESSAGES)
        self.backend = self.key(KeyScope.JOBS, KeyScope.MESSAGES)

    def key(self, *scopes: KeyScope) -> str:
        async def work(database: Database) -> str:
            _, text = await ApiKeyStore(database).create("default", "-".join(scopes), frozenset(scopes), None)
            return text

        return f"Bearer {self.api.jobs.run(work)}"

    def says(self, who: str, text: str) -> httpx.Response:
        """Write into the thread, over the chat's own key."""
        body = {"tenant_id": "default", "channel": "api", "thread": self.thread, "from": {"external_id": who}}
        return self.api.http.post(
            "/messages/inbound",
            json={**body, "content": {"text": text}},
            params={"async_processing": True},
            headers={"Authorization": self.chat},
        )

    def works(self, *calls: tuple[str, Mapping[str, Any]], policy: Mapping[str, Any] | None = None) -> None:
        """Let an engine with this policy of the server work until nothing is left; its model plans these calls."""

        @tool(effect="unsafe")
        async def pay(amount: int) -> dict[str, int]:
            """Pay an amount."""
            self.paid.append(amount)
            return {"paid": amount}

        @tool(effect="unsafe")
        async def book(context: ToolContext) -> dict[str, Any]:
            """Book a room."""
            answer = await context.ask("Where to?", CITY)
            self.booked.append(answer["city"])
            return dict(answer)

        async def work(database: Database) -> None:
            model = ScriptedModel.planning(*calls, answered="done")
            harness = Harness(database, model, [make_tool(pay), make_tool(book)], policy=policy)
            await harness.open()
            await harness.sweeper.sweep()
            await harness.drain()

        self.api.jobs.execute("UPDATE jobs SET wake_at = planq_now() WHERE wake_at < planq_never()")
        self.api.jobs.execute("UPDATE steps SET wake_at = planq_now() WHERE status = 'ready'")
        self.api.jobs.run(work)

    def question(self) -> dict[str, Any]:
        """Return the one open question of the thread."""
        (found,) = [one for one in self.inbox() if one["status"] == "open"]
        return found

    def inbox(self) -> list[dict[str, Any]]:
        rows = self.api.jobs.execute(
            "SELECT j.id FROM jobs j JOIN conversations c ON c.id = j.conversation_id WHERE c.thread = %s",
            self.thread,
        )
        found = [self.get(f"/jobs/{row['id']}/elicitations").json()["items"] for row in rows]
        return [one for items in found for one in items]

    def get(self, path: str) -> httpx.Response:
        return self.api.http.get(path, headers={"Authorization": self.backend})

    def answers(self, key: str, question: Mapping[str, Any], **body: Any) -> httpx.Response:
        return self.api.http.post(
            f"/elicitations/{question['id']}", json={"action": "accept", **body}, headers={"Authorization": key}
        )


@pytest.fixture(scope="module")
def api(postgres: TestPostgres, api_valkey: str) -> Iterator[Api]:
    url = postgres.create_migrated()
    application = Api(Settings(database_url=url, broker_url=api_valkey, max_wait_seconds=1))
    application.start()
    yield application
    application.stop()
    postgres.drop(url)


@pytest.fixture
def shop(api: Api) -> Iterator[Callable[..., Shop]]:
    """`shop(**config)`: a shop whose tenant is configured like this; ends what it leaves unfinished."""

    def opened(**config: Any) -> Shop:
        kept = {"rate_limit": 100_000, "channel_rate_limit": 100_000, "strategy": "plan", **config}
        api.jobs.execute("UPDATE tenants SET config = %s WHERE id = 'default'", json.dumps(kept))
        eventually(lambda: api.http.get("/tenants/default").json()["config"] == kept, what="the API knows it")
        return Shop(api)

    yield opened
    api.jobs.execute("SELECT planq_cancel_job(id, tenant_id) FROM jobs WHERE finished_at IS NULL")


def test_another_persons_yes_does_not_approve_a_call(shop: Callable[..., Shop]) -> None:
    here = shop()
    plan, policy = ("pay", {"amount": 5}), {"pay": "ask:asker"}
    first = here.says(ADA, "pay five")
    here.works(plan, policy=policy)
    asked = here.question()
    assert (asked["kind"], asked["asked_of"], asked["asked_ids"]) == ("approval", "asker", [ADA])

    other = here.says(BOB, "yes")
    here.works(plan, policy=policy)

    assert other.json()["job_id"] != first.json()["job_id"], "a message as every other"
    assert (here.paid, here.question()["id"]) == ([], asked["id"])
    assert here.says(ADA, "yes").json()["job_id"] == first.json()["job_id"]
    here.works(plan, policy=policy)
    assert here.paid == [5]
    (approved,) = [one for one in here.inbox() if one["id"] == asked["id"]]
    assert (approved["status"], approved["answered_by"], approved["channel"]) == ("accepted", ADA, "api")
    assert approved["answered_key"] is None


def test_another_persons_text_is_no_answer_to_a_form(shop: Callable[..., Shop]) -> None:
    here = shop()
    here.says(ADA, "book a room")
    here.works(("book", {}))
    asked = here.question()

    here.says(BOB, "Rome is nice")
    here.works(("book", {}))

    assert (here.booked, here.question()["id"]) == ([], asked["id"])
    here.says(ADA, "Pisa")
    here.works(("book", {}))
    assert here.booked == ["Pisa"]


@pytest.mark.parametrize(
    ("config", "who", "counts"),
    [
        ({"answers_from": "anyone"}, BOB, True),
        ({"answers_from": [BOB]}, BOB, True),
        ({"answers_from": [BOB]}, ADA, True),
        ({"answers_from": [BOB]}, "eve", False),
        ({"approvals_from": "anyone"}, BOB, False),
    ],
)
def test_a_tenant_says_who_else_answers_forms(
    shop: Callable[..., Shop], config: dict[str, Any], who: str, counts: bool
) -> None:
    here = shop(**config)
    here.says(ADA, "book a room")
    here.works(("book", {}))
    here.says(who, "Pisa")
    here.works(("book", {}))

    assert here.booked == (["Pisa"] if counts else [])


@pytest.mark.parametrize(
    ("config", "counts"),
    [({"approvals_from": [BOB]}, True), ({"approvals_from": "anyone"}, True), ({"answers_from": "anyone"}, False)],
)
def test_a_tenant_says_apart_from_forms_who_else_approves(
    shop: Callable[..., Shop], config: dict[str, Any], counts: bool
) -> None:
    here, plan, policy = shop(**config), ("pay", {"amount": 5}), {"pay": "ask:asker"}
    here.says(ADA, "pay five")
    here.works(plan, policy=policy)
    here.says(BOB, "yes")
    here.works(plan, policy=policy)

    assert here.paid == ([5] if counts else [])


@pytest.mark.parametrize("scope", [KeyScope.APPROVE, KeyScope.ADMIN])
@pytest.mark.parametrize("of_tenant", [True, False], ids=["tenant", "server"])
def test_an_approval_that_the_house_wants_is_an_operators(
    shop: Callable[..., Shop], scope: KeyScope, of_tenant: bool
) -> None:
    asks = {"pay": "ask"}
    here, plan = shop(tool_policy=asks if of_tenant else {}), ("pay", {"amount": 500})
    policy = {} if of_tenant else asks
    first = here.says(ADA, "refund me")
    here.works(plan, policy=policy)
    asked = here.question()
    assert (asked["asked_of"], asked["asked_ids"]) == ("operator", [])
    waits = here.api.http.get(f"/messages/status/{first.json()['job_id']}", headers={"Authorization": here.chat})
    assert (waits.status_code, waits.json()["message"]) == (202, "This waits for an approval by others")

    late = here.says(ADA, "yes")
    assert late.json()["job_id"] != first.json()["job_id"], "the customer's yes is a message"
    refused = problem_of(here.answers(here.backend, asked, by="the boss"), 403, "not_asked")
    assert "scope approve or admin" in refused["detail"]
    here.works(plan, policy=policy)
    assert (here.paid, here.question()["id"]) == ([], asked["id"])

    taken = here.answers(here.key(scope), asked, by="olga")
    assert taken.status_code == 200, taken.text
    assert (taken.json()["answered_by"], taken.json()["answered_key"]["name"]) == ("olga", scope)
    assert taken.json()["answered_key"]["id"] is not None
    here.works(plan, policy=policy)
    assert here.paid == [500]


def test_an_approval_by_persons_needs_one_of_them(shop: Callable[..., Shop]) -> None:
    here, plan, policy = shop(), ("pay", {"amount": 5}), {"pay": {"ask": [BOB, "olga"]}}
    here.says(ADA, "pay five")
    here.works(plan, policy=policy)
    asked = here.question()
    assert (asked["asked_of"], asked["asked_ids"]) == ("ids", [BOB, "olga"])

    here.says(ADA, "yes")
    problem_of(here.answers(here.backend, asked), 403, "not_asked")
    problem_of(here.answers(here.backend, asked, by=ADA), 403, "not_asked")
    assert here.question()["id"] == asked["id"]
    assert here.answers(here.backend, asked, by="olga").status_code == 200
    here.works(plan, policy=policy)
    assert here.paid == [5]


def test_who_names_another_person_does_not_answer_for_the_asker(shop: Callable[..., Shop]) -> None:
    here = shop()
    here.says(ADA, "book a room")
    here.works(("book", {}))
    asked = here.question()

    problem_of(here.answers(here.backend, asked, content={"city": "Rome"}, by=BOB), 403, "not_asked")
    assert here.answers(here.backend, asked, content={"city": "Pisa"}, by=ADA).json()["answered_by"] == ADA


def test_a_person_is_asked_at_once_for_all_calls_of_a_turn(shop: Callable[..., Shop]) -> None:
    here, policy = shop(), {"pay": "ask:asker"}
    calls = [("pay", {"amount": amount}) for amount in (1, 2, 3)]
    job = here.says(ADA, "pay one, two and three").json()["job_id"]
    here.works(*calls, policy=policy)

    asked = here.get(f"/jobs/{job}").json()["open_questions"]
    assert [one["step_index"] for one in asked] == [0, 1, 2]
    for _ in asked:
        here.says(BOB, "no")
        assert here.says(ADA, "yes").json()["job_id"] == job
    assert here.paid == [], "nothing waits for the first call"
    here.works(*calls, policy=policy)
    assert here.paid == [1, 2, 3]

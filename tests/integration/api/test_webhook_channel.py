"""What is posted to the channel `webhook`: messages and answers, by who can sign them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from standardwebhooks import Webhook

from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.states import QuestionKind
from planq.shared.settings.settings import Settings
from planq.shared.subjects.channels.store import ChannelStore
from planq.shared.subjects.webhooks.signing import SigningSecrets
from tests.integration.api.conftest import SECRET_KEY, Api, problem_of
from tests.integration.api.control import TOOLS, publish
from tests.integration.api.test_messages import asks
from tests.integration.api.test_questions import WHERE
from tests.support.pictures import PNG, base64_of
from tests.support.servers import TestPostgres

PATH = "/webhooks/channels/default/webhook"
HELLO = {"thread": "t1", "from": {"external_id": "ada"}, "content": {"text": "hello"}}


@pytest.fixture(scope="module")
def api(postgres: TestPostgres, api_valkey: str) -> Iterator[Api]:
    """An application that can sign, whose tenant has the channel."""
    url = postgres.create_migrated()
    api = Api(Settings(database_url=url, broker_url=api_valkey, secret_keys=SECRET_KEY))
    api.start()
    api.jobs.configure(channels=["api", "webhook"])
    connect = lambda database: ChannelStore(database).connect(  # noqa: E731
        "default", "webhook", ChannelKind.WEBHOOK, {"url": "http://127.0.0.1:9/"}
    )
    api.jobs.run(connect)
    yield api
    api.stop()
    postgres.drop(url)


def signed(
    api: Api, document: Any, *, id: str | None = None, age: float = 0, path: str = PATH, secret: str | None = None
) -> httpx.Response:
    """Post a document with a signature, from another host than this one."""
    secret = secret or api.http.get("/webhook-secret/inbound").json()["secret"]
    body, id = json.dumps(document), id or f"msg_{uuid4()}"
    moment = datetime.now(UTC) - timedelta(seconds=age)
    headers = {
        "content-type": "application/json",
        "host": "planq.example",
        "webhook-id": id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": Webhook(secret).sign(id, moment, body),
    }
    return api.http.post(path, content=body, headers=headers)


def test_a_signed_message_becomes_a_turn_once(api: Api) -> None:
    answer = signed(api, HELLO, id="msg_1")
    assert (answer.status_code, answer.json()["status"]) == (202, "accepted")
    again = signed(api, HELLO, id="msg_1")
    assert again.json() == {**answer.json(), "status": "duplicate"}
    api.jobs.complete(answer.json()["job_id"], "hi")
    assert api.http.get(f"/messages/status/{answer.json()['job_id']}").json()["message"]["content"]["text"] == "hi"
    (delivery,) = api.http.get("/deliveries").json()["items"]
    assert (delivery["kind"], delivery["channel"], delivery["url"]) == ("message", "webhook", None)
    assert delivery["conversation_id"] == answer.json()["conversation_id"]
    assert api.http.get(f"/deliveries/{delivery['id']}").json()["body"] == ""


def test_who_cannot_sign_is_refused_and_nothing_is_stored(api: Api) -> None:
    before = len(api.jobs.execute("SELECT id FROM conversation_messages"))
    for answer in (
        api.http.post(PATH, json=HELLO),
        api.http.post(
            PATH, json=HELLO, headers={"webhook-id": "1", "webhook-timestamp": "x", "webhook-signature": "y"}
        ),
        signed(api, HELLO, age=3600),
        signed(api, HELLO, path="/webhooks/channels/default/api"),
        signed(api, HELLO, path="/webhooks/channels/nobody/webhook"),
        signed(api, HELLO, path="/webhooks/channels/%00/%ff"),
    ):
        problem_of(answer, 403, "not_proved")
    assert len(api.jobs.execute("SELECT id FROM conversation_messages")) == before


@pytest.mark.parametrize(
    ("document", "status"),
    [
        ([], 422),
        ({}, 422),
        ({"from": {"external_id": "ada"}, "content": {"text": ""}}, 422),
        ({**HELLO, "tenant": "x"}, 422),
        ({**HELLO, "content": [{"type": "image"}]}, 422),
        ({"question_id": "7", "action": "accept"}, 404),
        ({"question_id": str(uuid4()), "action": "accept"}, 404),
        ({"question_id": str(uuid4()), "action": 7}, 422),
        ({"question_id": str(uuid4()), "action": "accept", "more": 1}, 422),
    ],
)
def test_what_is_no_message_is_told_so(api: Api, document: Any, status: int) -> None:
    assert signed(api, document).status_code == status


def test_a_message_has_its_parts(api: Api) -> None:
    picture = {"type": "image", "data": base64_of(PNG)}
    refused = signed(api, {**HELLO, "content": [picture]})
    assert problem_of(refused, 422, "invalid_request")["detail"].startswith("content: the model 'offline' reads text")


def test_a_question_is_sent_and_its_answer_is_taken_once(api: Api) -> None:
    publish(api, TOOLS)
    answer = signed(api, {**HELLO, "thread": "t2"}).json()
    story = asks(api, answer["job_id"], WHERE)
    (question,) = api.http.get(f"/jobs/{story.id}/elicitations").json()["items"]
    (delivery,) = api.http.get("/deliveries", params={"job": story.id}).json()["items"]
    assert (delivery["event"], delivery["status"]) == ("conversation.question", "pending")

    given = {"question_id": question["id"], "action": "accept", "from": {"external_id": "ada"}}
    wrong = signed(api, {**given, "content": {"city": 7}})
    assert problem_of(wrong, 422, "invalid_request")["errors"][0]["pointer"] == "/content/city"
    taken = signed(api, {**given, "content": {"city": "Oslo"}})
    assert (taken.status_code, taken.json()) == (202, {"status": "answered", "question_id": question["id"]})
    problem_of(signed(api, {**given, "content": {"city": "Rome"}}), 409, "conflict")
    now = api.http.get(f"/elicitations/{question['id']}").json()
    assert (now["content"], now["channel"], now["answered_by"]) == ({"city": "Oslo"}, "webhook", "ada")


def test_a_secret_is_not_taken_over_a_channel_which_would_keep_it(api: Api) -> None:
    publish(api, TOOLS)
    answer = signed(api, {**HELLO, "thread": "t3"}).json()
    schema = {"type": "object", "properties": {"api_key": {"type": "string"}}}
    story = asks(api, answer["job_id"], StepQuestion(QuestionKind.FORM, "Key?", schema, is_secret=True))
    (question,) = api.http.get(f"/jobs/{story.id}/elicitations").json()["items"]

    given = {"question_id": question["id"], "action": "accept", "from": {"external_id": "ada"}}
    refused = signed(api, {**given, "content": {"api_key": "sk-4711"}})
    assert "planq answer" in problem_of(refused, 409, "secret_in_chat")["detail"]
    said = signed(api, {**HELLO, "thread": "t3", "content": {"text": "sk-4711"}})
    assert "not stored" in problem_of(said, 409, "secret_in_chat")["detail"]
    rows = api.jobs.execute("SELECT text FROM conversation_messages")
    assert rows
    assert not [row for row in rows if "sk-4711" in row["text"]]
    assert signed(api, {**HELLO, "thread": "t3", "content": {"text": "cancel"}}).status_code == 202
    assert api.http.get(f"/elicitations/{question['id']}").json()["status"] == "cancelled"


def test_channels_are_listed_with_what_keeps_planq_from_sending(api: Api) -> None:
    api.jobs.execute("UPDATE channels SET problem = 'nobody listens' WHERE tenant_id = 'default'")
    try:
        (shown,) = api.http.get("/channels").raise_for_status().json()["items"]
    finally:
        api.jobs.execute("UPDATE channels SET problem = NULL")
    assert (shown["name"], shown["kind"], shown["problem"]) == ("webhook", "webhook", "nobody listens")
    assert shown["config"] == {"url": "http://127.0.0.1:9/"}
    assert "secret_hash" not in shown


def test_each_direction_has_a_secret_of_its_own(api: Api) -> None:
    api.jobs.execute("DELETE FROM tenant_secrets WHERE starts_with(name, 'webhook/')")
    outbound = api.http.get("/webhook-secret").json()["secret"]
    assert signed(api, HELLO, secret=outbound).status_code == 202, "as systems do that were connected long ago"
    inbound = api.http.get("/webhook-secret/inbound").json()["secret"]
    assert inbound != outbound
    for secret in (inbound, outbound):
        assert signed(api, HELLO, secret=secret).status_code == 202, "for a day after the first of its own"
    api.jobs.execute("UPDATE tenant_secrets SET expires_at = now() WHERE expires_at IS NOT NULL")
    assert signed(api, HELLO, secret=inbound).status_code == 202
    problem_of(signed(api, HELLO, secret=outbound), 403, "not_proved")
    newer = api.http.post("/webhook-secret/inbound/rotate").json()["secret"]
    for secret in (inbound, newer):
        assert signed(api, HELLO, secret=secret).status_code == 202, "for a day after a rotation"
    assert api.http.get("/webhook-secret").json()["secret"] == outbound


def test_a_channel_that_is_connected_now_never_takes_the_secret_of_callbacks(api: Api) -> None:
    api.jobs.execute("DELETE FROM tenant_secrets WHERE starts_with(name, 'webhook/')")
    outbound = api.http.get("/webhook-secret").json()["secret"]
    masters = api.settings.master_keys
    api.jobs.run(lambda database: SigningSecrets(database, masters).begin_inbound("default", keeps_callbacks=False))
    problem_of(signed(api, HELLO, secret=outbound), 403, "not_proved")


@pytest.mark.parametrize("body", ["{", "[" * 100_000, "NaN"])
def test_what_is_signed_and_no_json_is_told_so(api: Api, body: str) -> None:
    secret, now = api.http.get("/webhook-secret/inbound").json()["secret"], datetime.now(UTC)
    headers = {
        "content-type": "application/json",
        "webhook-id": "m",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign("m", now, body),
    }
    problem_of(api.http.post(PATH, content=body, headers=headers), 400, "malformed_json")

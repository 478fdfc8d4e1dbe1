"""Conversations over HTTP: look at them, read them page by page, set their policy, close and erase them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.job_store import Message
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.retry import StageTries
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.platform.errors import Erased, ErrorRecord, Transient
from planq.shared.subjects.conversations.store import ConversationStore, InboundResult, TurnReader
from tests.integration.api.conftest import Api
from tests.support.claiming import claim_stage
from tests.support.conversations import message


def says(api: Api, text: str, **fields: Any) -> InboundResult:
    """Receive a message without a worker."""
    received: InboundResult = api.jobs.run(
        lambda database: ConversationStore(database).receive(message(text, **fields))
    )
    return received


def answers(api: Api, received: InboundResult, text: str = "done", **ended: Any) -> None:
    """End a turn and settle it, as a worker does."""

    async def work(database: Any) -> None:
        store = PostgresJobStore(database, new_id(), as_called)
        assert received.job_id is not None
        claim = await claim_stage(store, received.job_id, [JobStatus.QUEUED])
        assert claim is not None
        assert await store.end_job(claim, JobStatus.COMPLETED, text, None, [], **ended)
        await store.serve_end(received.job_id)

    api.jobs.run(work)


def test_an_answer_says_that_the_model_is_away_and_when_it_is_asked_again(api: Api) -> None:
    turn = says(api, "hello", thread=str(uuid4()))
    status = f"/messages/status/{turn.job_id}"
    assert "reason" not in api.http.get(status).json()

    async def its_model_is_away(database: Any) -> None:
        store = PostgresJobStore(database, new_id(), as_called)
        assert turn.job_id is not None
        claim = await claim_stage(store, turn.job_id, [JobStatus.QUEUED])
        assert claim is not None
        away = ErrorRecord.of(Transient("openai says 503"))
        assert await store.retry_stage(claim, away, timedelta(seconds=9), StageTries(1, 4, 2.0), [])

    api.jobs.run(its_model_is_away)
    found = api.http.get(status)

    assert found.status_code == 202
    answer = found.json()
    assert (answer["status"], answer["reason"]) == ("processing", "model_away")
    assert answer["retry_at"] == api.http.get(f"/jobs/{turn.job_id}").json()["retry"]["next_attempt_at"]
    assert "openai says" not in found.text, "the provider's words are for the operator"


def test_a_conversation_shows_what_stands_in_it(api: Api) -> None:
    thread = str(uuid4())
    first = says(api, "hello", thread=thread, source_id=thread)
    second = says(api, "and?", thread=thread)
    called = [Message("tool_call", "c1", "note", {"a": 1}), Message("tool_response", "c1", "note", {"ok": True})]
    answers(api, first, "hi", messages=called)
    (shown,) = api.http.get("/conversations", params={"thread": thread}).json()["items"]
    assert shown == api.http.get(f"/conversations/{first.conversation_id}").json()
    assert (shown["messages_in"], shown["messages_out"], shown["active_job_id"]) == (2, 1, str(second.job_id))
    path = f"/conversations/{first.conversation_id}/messages"
    page = api.http.get(path, params={"limit": 3}).json()
    rest = api.http.get(path, params={"cursor": page["next_cursor"]}).json()
    rows = [*page["items"], *rest["items"]][::-1]
    assert [(row["sequence"], row["turn"], row["kind"], row["text"]) for row in rows] == [
        (1, 1, "message", "hello"),
        (2, 2, "message", "and?"),
        (3, 1, "tool_call", ""),
        (4, 1, "tool_response", ""),
        (5, 1, "message", "hi"),
    ]
    assert rest["next_cursor"] is None
    assert (rows[0]["source_id"], rows[3]["content"]) == (
        thread,
        {"id": "c1", "name": "note", "output": {"ok": True}},
    )
    of_job = api.http.get(f"/jobs/{first.job_id}/messages").json()["items"]
    assert [row["sequence"] for row in of_job] == [1, 3, 4, 5]


def test_a_job_outside_conversations_has_the_messages_of_its_chained_tool(api: Api) -> None:
    job_id = api.http.post("/jobs", json={"input": "x"}).json()["id"]
    assert api.http.get(f"/jobs/{job_id}/messages").json() == {"items": []}

    async def work(database: Any) -> None:
        store = PostgresJobStore(database, new_id(), as_called)
        claim = await claim_stage(store, UUID(job_id), [JobStatus.QUEUED])
        assert claim is not None
        called = [Message("tool_call", "c1", "note", {}), Message("tool_response", "c1", "note", {"ok": True})]
        assert await store.end_job(claim, JobStatus.FAILED, None, ErrorRecord("x", "y"), [], messages=called)

    api.jobs.run(work)
    rows = api.http.get(f"/jobs/{job_id}/messages").json()["items"]
    assert [(row["kind"], row["content"]["id"]) for row in rows] == [("tool_call", "c1"), ("tool_response", "c1")]
    assert api.http.get(f"/jobs/{uuid4()}/messages").status_code == 404


def test_tokens_are_counted_and_not_guessed_by_length(api: Api) -> None:
    received = says(api, "漢" * 3_000, thread=str(uuid4()))
    answers(api, received, "tiktoken is great!")

    of_conversation = api.http.get(f"/conversations/{received.conversation_id}/messages").json()["items"]
    of_job = api.http.get(f"/jobs/{received.job_id}/messages").json()["items"]

    assert [row["tokens"] for row in of_conversation] == [6, 6_000]
    assert [row["tokens"] for row in of_job] == [6_000, 6]


def test_policy_and_closing(api: Api) -> None:
    first = says(api, "hello", thread=str(uuid4()))
    path = f"/conversations/{first.conversation_id}"
    changed = api.http.patch(path, json={"policy": "reject", "is_closed": True}).json()
    assert (changed["policy"], changed["is_closed"]) == ("reject", True)
    assert api.http.patch(path, json={}).json() == changed
    opened = api.http.patch(path, json={"policy": None, "is_closed": False}).json()
    assert (opened["policy"], opened["is_closed"]) == (None, False)
    for body in ({"policy": "wait"}, {"is_closed": "yes"}, {"thread": "x"}):
        assert api.http.patch(path, json=body).status_code == 422


def test_erasing_leaves_the_counters(api: Api) -> None:
    thread = str(uuid4())
    first = says(api, "my secret", thread=thread, source_id=thread, metadata={"secret": 1})
    answers(api, first, "a secret")
    running, held = [says(api, f"secret {n}", thread=thread) for n in range(2)]
    left = api.http.delete(f"/conversations/{first.conversation_id}")
    assert (left.status_code, left.json()["messages_in"], left.json()["active_job_id"]) == (200, 3, None)
    rows = api.http.get(f"/conversations/{first.conversation_id}/messages").text
    assert "secret" not in rows
    for turn in (running, held):
        assert api.http.get(f"/jobs/{turn.job_id}").json()["status"] == "cancelled"
    with pytest.raises(Erased):
        says(api, "again", thread=thread, source_id=thread)
    after = says(api, "new", thread=thread)
    assert after.begins
    shown = api.jobs.run(
        lambda database: TurnReader(database).history("default", first.conversation_id, after.job_id)
    )
    assert shown == []


@pytest.mark.parametrize("path", ["/conversations/x", f"/conversations/{UUID(int=1)}"])
def test_what_is_not_there(api: Api, path: str) -> None:
    assert api.http.get(path).status_code == 404
    assert api.http.get(f"{path}/messages").status_code == 404
    assert api.http.patch(path, json={}).status_code == 404
    assert api.http.delete(path).status_code == 404


def test_cursors_are_checked(api: Api) -> None:
    first = says(api, "hello", thread=str(uuid4()))
    for path in ("/conversations", f"/conversations/{first.conversation_id}/messages"):
        assert api.http.get(path, params={"cursor": "x"}).status_code == 422


def test_cancelling_a_turn_lets_the_next_begin(api: Api) -> None:
    thread = str(uuid4())
    first, second = [says(api, text, thread=thread) for text in ("one", "two")]
    assert api.http.post(f"/jobs/{first.job_id}/cancel").json()["status"] == "cancelled"
    shown = api.http.get(f"/conversations/{first.conversation_id}").json()
    assert shown["active_job_id"] == str(second.job_id)


@pytest.mark.parametrize("field", ["channel", "thread"])
def test_what_cannot_be_stored_is_not_looked_for(api: Api, field: str) -> None:
    answer = api.http.get("/conversations", params={field: "a\x00b"})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field

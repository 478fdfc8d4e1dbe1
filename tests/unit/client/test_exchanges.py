"""What the client sends, when it sends it again, and what it makes of the replies: without a wire."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from planq.shared.client import requests
from planq.shared.client.exchanges import Exchange, Exchanges, PauseRequest
from planq.shared.client.facts import JobCancelled, JobFailed, JobPartial, outcome_of, result_of
from planq.shared.client.following import Download, EventFollower, StreamPatience
from planq.shared.client.wire import ApiReply, ApiRequest, ConnectionFailure
from planq.shared.platform.errors import Conflict, InvalidRequest, NotFound, Unavailable

UNSENT = ConnectionFailure(httpx.ConnectError("refused"), was_sent=False)
CUT = ConnectionFailure(httpx.ReadError("reset"), was_sent=True)
LOOK = ApiRequest("GET", "/jobs/1", is_repeatable=True)
RESUME = requests.action("jobs", "1", "resume", {})


class Conversation:
    """Carries an exchange out against replies that were written before, on a clock that only rests move."""

    def __init__(self, *replies: ApiReply | ConnectionFailure, patience: float = 60.0) -> None:
        self._replies = list(replies)
        self.now = 0.0
        self.sent: list[ApiRequest] = []
        self.rests: list[float] = []
        self.exchanges = Exchanges("http://planq", patience, clock=lambda: self.now, draw=lambda: 1.0)

    def run(self, exchange: Exchange[Any]) -> Any:
        came: Any = None
        while True:
            try:
                wish = exchange.send(came)
            except StopIteration as ended:
                return ended.value
            if isinstance(wish, PauseRequest):
                self.rests.append(wish.seconds)
                self.now += wish.seconds
                continue
            self.sent.append(wish)
            self.now += wish.seconds
            came = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]


def reply(status: int, body: Any = None, **headers: str) -> ApiReply:
    return ApiReply(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(body).encode()
    )


def job(status: str, **fields: Any) -> dict[str, Any]:
    return {"id": "1", "status": status, "answer": None, "output": None, "error": None, "steps": [], **fields}


@pytest.mark.parametrize("failure", [UNSENT, reply(429, {"title": "later"}, retry_after="2")], ids=["unsent", "429"])
@pytest.mark.parametrize("request_", [LOOK, RESUME], ids=["look", "resume"])
def test_what_was_not_done_is_sent_again(failure: ApiReply | ConnectionFailure, request_: ApiRequest) -> None:
    talk = Conversation(failure, failure, reply(200, job("queued")))

    assert talk.run(talk.exchanges.document(request_))["status"] == "queued"
    assert len(talk.sent) == 3
    assert talk.rests == ([0.1, 0.2] if failure is UNSENT else [2.0, 2.0])


@pytest.mark.parametrize("failure", [CUT, reply(503, {"title": "away"})], ids=["cut", "503"])
def test_what_may_have_been_done_is_sent_again_only_where_a_repeat_is_harmless(
    failure: ApiReply | ConnectionFailure,
) -> None:
    talk = Conversation(failure, reply(200, job("queued")))
    assert talk.run(talk.exchanges.document(LOOK))["id"] == "1"

    talk = Conversation(failure, reply(200, job("queued")))
    with pytest.raises(Unavailable):
        talk.run(talk.exchanges.document(RESUME))
    assert talk.sent == [RESUME]


@pytest.mark.parametrize(
    ("status", "kind"), [(404, NotFound), (409, Conflict), (422, InvalidRequest), (429, InvalidRequest)]
)
def test_a_refusal_is_final(status: int, kind: type[Exception]) -> None:
    talk = Conversation(reply(status, {"detail": "no"}))
    with pytest.raises(kind, match=r"^no$"):
        talk.run(talk.exchanges.document(LOOK))
    assert len(talk.sent) == 1


def test_patience_ends() -> None:
    talk = Conversation(UNSENT, patience=30.0)
    with pytest.raises(Unavailable, match="no planq API answers at http://planq"):
        talk.run(talk.exchanges.document(LOOK))
    assert 20 < talk.now <= 30
    assert max(talk.rests) == 5.0

    hasty = Conversation(UNSENT, patience=0)
    with pytest.raises(Unavailable):
        hasty.run(hasty.exchanges.document(LOOK))
    assert hasty.rests == []


def test_a_submission_keeps_the_key_that_it_made_over_all_tries() -> None:
    talk = Conversation(CUT, UNSENT, reply(202, job("queued")))
    talk.run(talk.exchanges.document(requests.submission("hi", {"with_": {"a": 1}, "user": None}, None)))

    keys = {request.headers["Idempotency-Key"] for request in talk.sent}
    other = requests.submission("hi", {}, None)
    assert len(talk.sent) == 3
    assert len(keys) == 1
    assert other.headers["Idempotency-Key"] not in keys
    assert talk.sent[0].body == {"input": "hi", "with": {"a": 1}}


def test_a_long_poll_goes_on_over_a_restart_until_the_job_has_ended() -> None:
    talk = Conversation(
        reply(200, job("executing")), CUT, UNSENT, reply(200, job("executing")), reply(200, job("completed"))
    )
    assert talk.run(talk.exchanges.ended("1", None))["status"] == "completed"
    assert [request.params for request in talk.sent] == [{}, *[{"wait": 20.0}] * 4]


def test_waiting_ends_in_time() -> None:
    talk = Conversation(reply(200, job("executing")))
    with pytest.raises(TimeoutError, match="job 1 is executing after 50 seconds"):
        talk.run(talk.exchanges.ended("1", 50))
    assert [request.params.get("wait") for request in talk.sent] == [None, 20.0, 20.0, 10.0]


def test_a_wait_ends_with_a_question_where_that_is_wanted_also_with_one_that_was_open_before() -> None:
    talk = Conversation(reply(200, job("input_required")), reply(200, job("completed")))
    assert talk.run(talk.exchanges.ended("1", None, or_asks=True))["status"] == "input_required"
    assert talk.run(talk.exchanges.ended("1", None))["status"] == "completed"


@pytest.mark.parametrize(("found", "tries"), [("accepted", 1), ("open", 2)])
def test_an_answer_that_may_be_lost_is_given_again_unless_the_question_has_it(found: str, tries: int) -> None:
    talk = Conversation(CUT, reply(200, {"id": "q", "status": found}), reply(200, {"id": "q", "status": "accepted"}))
    assert talk.run(talk.exchanges.answered("q", {"action": "accept"}))["status"] == "accepted"
    assert [request.method for request in talk.sent].count("POST") == tries


def test_a_result_is_the_output_else_the_answer_and_errors_bring_the_steps() -> None:
    failed = {
        "index": 0,
        "tool_name": "pay",
        "status": "failed",
        "output": None,
        "error": {"code": "tool_error", "message": "no"},
    }
    assert result_of(job("completed", answer="text")) == "text"
    assert result_of(job("completed", answer="{}", output={"a": 1})) == {"a": 1}
    with pytest.raises(JobFailed, match="job 1 failed: auth: no key") as ended:
        result_of(job("failed", error={"code": "auth", "message": "no key"}, steps=[failed]))
    assert ended.value.steps == [failed]
    with pytest.raises(JobCancelled):
        result_of(job("cancelled"))
    with pytest.raises(JobPartial, match=r"job 1 partial: \$0 pay: tool_error: no") as some:
        result_of(job("completed", outcome="partial", answer="the rest", steps=[failed]))
    assert some.value.result == "the rest"


@pytest.mark.parametrize(
    "said", [{"output": {"success": False}}, {"output": None, "answer": '{"success": false, "st'}]
)
def test_a_plan_of_agents_that_did_not_succeed_is_partial(said: dict[str, Any]) -> None:
    step = {"index": 0, "tool_name": "cp__agent_orchestrate", "status": "succeeded", "error": None}
    with pytest.raises(JobPartial, match="job 1 partial: its plan of agents did not succeed") as some:
        result_of(job("completed", respond="output", steps=[step], **said))
    assert some.value.result == (said["output"] or said["answer"])
    assert result_of(job("completed", respond="model", answer="it failed", steps=[step])) == "it failed"
    assert result_of(
        job("completed", respond="output", output={"success": False}, steps=[{**step, "tool_name": "t"}])
    )


def test_the_outcome_wins_over_the_status() -> None:
    with pytest.raises(JobFailed):
        result_of(job("completed", outcome="failed"))
    assert result_of(job("completed", outcome="succeeded", answer="a")) == "a"


def events(*frames: tuple[str | None, str]) -> bytes:
    lines = [f"{'' if id is None else f'id: {id}' + chr(10)}event: {kind}\ndata: {{}}\n\n" for id, kind in frames]
    return "".join(lines).encode()


def test_a_stream_goes_on_after_the_last_event_that_came_whole() -> None:
    following = EventFollower("1", StreamPatience(lambda: 0.0, 0.0), with_children=True)
    assert following.request().params == {"children": "true"}
    whole = events(("1-1", "job_submitted"), ("1-2", "step_started"))

    seen = [event.id for event in following.read(whole[:-5])]
    assert (seen, following.request().params["after"]) == (["1-1"], "1-1")

    seen += [event.id for event in following.read(events(("1-2", "step_started"), (None, "job")))]
    assert (seen, following.is_over) == (["1-1", "1-2", None], True)


def test_who_was_never_heard_gets_less_patience_than_who_was() -> None:
    now = [0.0]
    patience = StreamPatience(lambda: now[0], 10.0)
    away = Unavailable("away")
    now[0] = 9.0
    assert patience.broke(away) > 0
    patience.heard()
    now[0] = 120.0
    assert patience.broke(away) > 0
    now[0] = 130.0
    with pytest.raises(Unavailable):
        patience.broke(away)


def test_lines_that_came_before_a_break_do_not_come_again() -> None:
    download = Download("/batches/1/results", {}, StreamPatience(lambda: 0.0, 0.0))
    download.request()
    first = list(download.read(b'{"id": "a"}\n{"id": "b"}\n{"id": "c'))
    download.request()
    assert [*first, *download.read(b'{"id": "a"}\n{"id": "b"}\n{"id": "c"}\n')] == [{"id": one} for one in "abc"]


@pytest.mark.parametrize("as_file", [True, False])
def test_an_upload_can_be_sent_again(as_file: bool, tmp_path: Path) -> None:
    lines = [{"custom_id": str(number), "body": {"input": "ä"}} for number in range(3)]
    given: Any = (line for line in lines)
    if as_file:
        given = tmp_path / "lines.jsonl"
        given.write_text("".join(json.dumps(line) + "\n" for line in lines))

    fields = {"strict": True, "metadata": {"a": 1}, "name": "x", "canary": None}
    request = requests.upload_request(given, fields, None)

    def read(pieces: Iterable[bytes]) -> list[Any]:
        return [json.loads(line) for line in b"".join(pieces).splitlines()]

    sent = [list(request.pieces()) if request.pieces else [request.content or b""] for _ in range(2)]
    assert read(sent[0]) == read(sent[1]) == lines
    assert not as_file or int(request.headers["Content-Length"]) == len(b"".join(sent[0]))
    assert request.params == {"strict": "true", "metadata": '{"a": 1}', "name": "x"}


def test_an_answer_that_was_cut_off_is_returned_and_its_outcome_says_so() -> None:
    cut = job("completed", outcome="incomplete", answer="It is forty-")
    assert (result_of(cut), outcome_of(cut)) == ("It is forty-", "incomplete")

"""Questions over HTTP: the inbox, answers that are checked, and answers that come too late."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any
from uuid import uuid4

import httpx
import pytest

from planq.shared.kernel.questions import APPROVAL_SCHEMA, StepQuestion
from planq.shared.kernel.states import QuestionKind
from tests.integration.api.conftest import Api, problem_of
from tests.integration.api.control import JobDriver, begun, call
from tests.support.waiting import eventually

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "nights": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
WHERE = StepQuestion(QuestionKind.FORM, "Where to?", SCHEMA, state={"opaque": 1})
MAY_IT = StepQuestion(QuestionKind.APPROVAL, "May it?", APPROVAL_SCHEMA, details={"tool_name": "mail"})
AT_ONCE = 50


@pytest.fixture
def api(control_api: Api) -> Api:
    return control_api


def asking(api: Api, question: StepQuestion = WHERE) -> tuple[JobDriver, dict[str, Any]]:
    """A job whose first step of two asks, and the question."""
    story = begun(api, call("look"), call("put"))
    story.ask(0, question)
    (found,) = api.http.get(f"/jobs/{story.id}/elicitations").json()["items"]
    return story, found


def test_a_question_is_shown_in_the_inbox_and_at_its_job(api: Api) -> None:
    story, question = asking(api)

    assert (question["kind"], question["status"], question["message"]) == ("form", "open", "Where to?")
    assert (question["schema"], question["job_id"], question["step_index"]) == (SCHEMA, story.id, 0)
    assert question["due_at"] is not None
    assert "opaque" not in str(question), "the state is of who asks alone"
    assert api.http.get(f"/elicitations/{question['id']}").json() == question
    inbox = api.http.get("/elicitations", params={"status": "open", "job": story.id}).json()
    assert inbox == {"items": [question], "next_cursor": None}
    step = story.seen()["steps"][0]
    assert (step["question"]["id"], step["question"]["kind"]) == (question["id"], "form")
    api.http.post(f"/jobs/{story.id}/pause")
    assert api.http.get(f"/elicitations/{question['id']}").json()["due_at"] is None


def test_the_inbox_has_pages(api: Api) -> None:
    asked = [asking(api)[1]["id"] for _ in range(3)]
    first = api.http.get("/elicitations", params={"status": "open", "limit": 2}).json()
    second = api.http.get("/elicitations", params={"status": "open", "cursor": first["next_cursor"]}).json()

    found = [one["id"] for one in first["items"] + second["items"]]
    assert found[:3] == asked[::-1]
    everything = api.http.get("/elicitations", params={"status": "open", "order": "oldest", "limit": 100}).json()
    assert [one["id"] for one in everything["items"]][-3:] == asked
    behind = {"status": "open", "order": "oldest", "cursor": first["next_cursor"]}
    assert [one["id"] for one in api.http.get("/elicitations", params=behind).json()["items"]] == asked[2:]
    assert api.http.get("/elicitations", params={"order": "random"}).status_code == 422
    assert api.http.get("/elicitations", params={"cursor": "x"}).status_code == 422
    assert api.http.get("/elicitations", params={"status": "asked"}).status_code == 422


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("accept", "accepted"),
        ("YES", "accepted"),
        ("submit", "accepted"),
        ("no", "declined"),
        ("cancel", "cancelled"),
    ],
)
def test_an_answer_is_kept_with_who_gave_it_and_the_step_goes_on(api: Api, action: str, status: str) -> None:
    story, question = asking(api)
    content = {"city": "Pisa", "nights": 2}

    answer = api.http.post(
        f"/elicitations/{question['id']}",
        json={"action": action, "content": content, "reason": "so", "by": "ada", "channel": "web"},
    )

    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["status"], told["reason"], told["answered_by"], told["channel"]) == (status, "so", "ada", "web")
    assert told["content"] == (content if status == "accepted" else None)
    assert (told["due_at"], told["answered_at"] is None) == (None, False)
    seen = story.seen()
    assert (seen["status"], seen["steps"][0]["status"], seen["steps"][0]["question"]) == ("executing", "ready", None)
    late = api.http.post(f"/elicitations/{question['id']}", json={"action": "accept", "content": content})
    assert (late.status_code, late.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("content", "pointers"),
    [
        ({"city": 1, "nights": 0}, {"/content/city", "/content/nights"}),
        ({"nights": 1}, {"/content"}),
        (None, {"/content"}),  # accepting without a content is accepting with an empty one
        ([], {"/content"}),
        ({"city": "x", "more": 1}, {"/content"}),
    ],
)
def test_a_content_that_breaks_the_schema_is_refused_and_the_question_stays_open(
    api: Api, content: Any, pointers: set[str]
) -> None:
    story, question = asking(api)

    refused = api.http.post(f"/elicitations/{question['id']}", json={"action": "accept", "content": content})

    assert refused.status_code == 422, refused.text
    assert {one["pointer"] for one in refused.json()["errors"]} == pointers
    assert api.http.get(f"/elicitations/{question['id']}").json() == question
    assert story.seen()["status"] == "input_required"


def test_bad_answers_change_nothing(api: Api) -> None:
    story, question = asking(api)
    path = f"/elicitations/{question['id']}"
    huge = {"action": "accept", "content": {"city": "x" * 70_000}}

    refused = [
        api.http.post(path, json={}).status_code,
        api.http.post(path, json={"action": "accept", "content": {"city": "x"}, "colour": 1}).status_code,
        api.http.post(path, json={"action": "x" * 33}).status_code,
        api.http.post(path, json={"action": "accept", "channel": "a b"}).status_code,
        api.http.post(path, json=huge).status_code,
        api.http.post(path, json={"action": "decline", "reason": "x" * 2_001}).status_code,
        api.http.post(f"/elicitations/{uuid4()}", json={"action": "accept"}).status_code,
        api.http.post("/elicitations/no-id", json={"action": "accept"}).status_code,
        api.http.get(f"/elicitations/{uuid4()}").status_code,
        api.http.get(f"/jobs/{uuid4()}/elicitations").status_code,
    ]

    assert refused == [422, 422, 422, 422, 413, 422, 404, 404, 404, 404]
    assert api.http.get(path).json() == question
    assert story.seen()["steps"][0]["status"] == "waiting"


@pytest.mark.parametrize("action", ["accpet", "", "perhaps", "да"])
def test_what_is_no_word_for_an_action_is_refused_and_declines_nothing(api: Api, action: str) -> None:
    story, question = asking(api)

    refused = api.http.post(f"/elicitations/{question['id']}", json={"action": action, "content": {"city": "x"}})

    told = problem_of(refused, 422, "invalid_request")
    assert all(word in told["detail"] for word in ("accept (", "approve", "decline (", "cancel ("))
    assert told["errors"][0]["pointer"] == "/action"
    assert api.http.get(f"/elicitations/{question['id']}").json() == question
    assert story.seen()["status"] == "input_required"


def test_what_is_foreign_is_unknown(api: Api) -> None:
    _, question = asking(api)
    api.jobs.execute("UPDATE questions SET tenant_id = 'other' WHERE id = %s RETURNING id", question["id"])

    answer = {"action": "accept", "content": {"city": "Pisa"}}
    assert api.http.get(f"/elicitations/{question['id']}").status_code == 404
    assert api.http.post(f"/elicitations/{question['id']}", json=answer).status_code == 404


def test_of_fifty_answers_at_once_one_counts(api: Api) -> None:
    story, question = asking(api)
    bodies = [{"action": "accept", "content": {"city": f"city {n}"}} for n in range(AT_ONCE)]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda body: api.http.post(f"/elicitations/{question['id']}", json=body), bodies))

    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: AT_ONCE - 1}
    (counted,) = [answer.json()["content"] for answer in answers if answer.status_code == 200]
    assert api.http.get(f"/elicitations/{question['id']}").json()["content"] == counted
    assert story.seen()["steps"][0]["status"] == "ready"


def test_an_approval_that_is_declined_fails_the_step_with_the_reason(api: Api) -> None:
    story, question = asking(api, MAY_IT)

    assert question["details"] == {"tool_name": "mail"}
    answer = api.http.post(f"/elicitations/{question['id']}", json={"action": "reject", "reason": "too dear"})

    assert answer.json()["status"] == "declined"
    step = story.seen()["steps"][0]
    assert (step["status"], step["error"]["code"]) == ("failed", "declined")
    assert "too dear" in step["error"]["message"]


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        ({"action": "accept", "content": {"outcome": "happened", "output": {"text": "x"}}}, "succeeded"),
        ({"action": "accept", "content": {"outcome": "did_not_happen"}}, "ready"),
        ({"action": "decline"}, "failed"),
    ],
)
def test_a_call_that_was_cut_off_is_settled_as_any_question_is_answered(api: Api, said: Any, ends: str) -> None:
    story = begun(api, call("sign"), call("put"))
    story.ask(0)
    (question,) = api.http.get(f"/jobs/{story.id}/elicitations").json()["items"]
    path = f"/elicitations/{question['id']}"

    assert question["kind"] == "outcome"
    assert api.http.post(path, json={"action": "accept"}).status_code == 422
    assert api.http.post(path, json={"action": "accept", "content": {"outcome": "perhaps"}}).status_code == 422
    assert api.http.post(path, json=said).status_code == 200
    assert story.seen()["steps"][0]["status"] == ends
    assert api.http.post(path, json=said).status_code == 409


def test_what_is_no_call_that_was_cut_off_cannot_be_settled(api: Api) -> None:
    story, _ = asking(api)

    settled = api.http.post(f"/jobs/{story.id}/steps/0/settle", json={"outcome": "did_not_happen"})

    assert settled.status_code == 409
    assert story.seen()["status"] == "input_required"


def family(api: Api, metadata: dict[str, str]) -> list[JobDriver]:
    """A job, one that it has made, and one that that has made; each executes its plan."""
    stories = [begun(api, call("look"), call("put"), metadata=metadata) for _ in range(3)]
    for above, story in pairwise(stories):
        api.jobs.execute(
            "UPDATE jobs SET parent_job_id = %s, root_job_id = %s, parent_round = 0, parent_step_index = 0 "
            "WHERE id = %s RETURNING id",
            *(above.id, stories[0].id, story.id),
        )
    return stories


def listed(api: Api, **query: Any) -> set[str]:
    return {job["id"] for job in api.http.get("/jobs", params={"limit": 100, **query}).json()["items"]}


def counts(api: Api) -> dict[str, int]:
    """Return how many jobs that no other job has made execute, and how many of them ask."""
    found = api.http.get("/job-counts").json()["counts"]
    return {status: found[status] for status in ("executing", "input_required")}


def test_every_job_above_a_question_waits_for_the_person(api: Api) -> None:
    root, middle, leaf = family(api, {"tree": "one"})
    other, beside, _ = family(api, {"tree": "other"})
    assert {job.seen()["status"] for job in (root, middle, leaf)} == {"executing"}
    counted = counts(api)
    leaf.ask(0, WHERE)
    beside.ask(0, MAY_IT)
    assert counts(api) == {"executing": counted["executing"] - 2, "input_required": counted["input_required"] + 2}

    (question,) = api.http.get(f"/jobs/{leaf.id}/elicitations").json()["items"]
    short = {name: question[name] for name in ("id", "job_id", "step_index", "kind", "message")}
    for job in (root, middle, leaf):
        seen = job.seen()
        assert (seen["status"], seen["open_questions"]) == ("input_required", [short])
        assert api.http.get(f"/jobs/{job.id}/elicitations").json()["items"] == [question]
    asking = listed(api, status="input_required")
    assert {root.id, middle.id, leaf.id, other.id, beside.id} <= asking
    assert {root.id, other.id} == {root.id, other.id, middle.id, leaf.id} & listed(
        api, status="input_required", roots=True
    )
    assert not asking & listed(api, status="executing")
    assert api.http.get(f"/tasks/{root.id}").json()["status"] == "paused"

    api.http.post(f"/elicitations/{question['id']}", json={"action": "accept", "content": {"city": "Pisa"}})

    for job in (root, middle, leaf):
        assert (job.seen()["status"], job.seen()["open_questions"]) == ("executing", [])
    assert root.id in listed(api, status="executing")
    assert root.id not in listed(api, status="input_required")
    assert other.seen()["status"] == "input_required", "the other tree still asks"


def test_a_question_of_a_child_is_told_and_answered_by_the_messages_of_its_turn(api: Api) -> None:
    body = {"tenant_id": "default", "channel": "api", "thread": str(uuid4()), "from": {"external_id": "ann"}}

    def book() -> httpx.Response | None:
        sent = api.http.post(
            "/messages/inbound", json={**body, "content": {"text": "book"}, "async_processing": True}
        )
        return sent if sent.status_code == 202 else None

    sent = eventually(book, what="the limits of other tests hold no longer")
    root, child = family(api, {"tree": "of a message"})[:2]
    message, turn = sent.json(), "UPDATE conversations SET active_job_id = %s WHERE id = %s RETURNING id"
    api.jobs.execute(
        "UPDATE jobs SET conversation_id = %s WHERE id = %s RETURNING id", message["conversation_id"], root.id
    )
    api.jobs.execute(turn, root.id, message["conversation_id"])
    child.ask(0, MAY_IT)

    found = api.http.get(f"/messages/status/{root.id}").json()
    yes = api.http.post("/messages/inbound", json={**body, "content": {"text": "yes"}, "async_processing": True})

    assert (found["status"], found["elicitation"]["job_id"]) == ("input_required", child.id)
    assert yes.json()["answered"] == {"id": found["elicitation"]["id"], "action": "accept"}


def test_cancelling_closes_the_question(api: Api) -> None:
    story, question = asking(api)
    api.http.post(f"/jobs/{story.id}/cancel")

    closed = api.http.get(f"/elicitations/{question['id']}").json()
    assert (closed["status"], closed["due_at"], closed["channel"]) == ("cancelled", None, None)
    assert api.http.post(f"/elicitations/{question['id']}", json={"action": "decline"}).status_code == 409


SECRET = StepQuestion(
    QuestionKind.FORM,
    "Who are you?",
    {"type": "object", "properties": {"api_key": {"type": "string", "maxLength": 12}}},
    is_secret=True,
)


def test_without_a_master_key_a_secret_is_not_taken_and_the_question_stays_open(api: Api) -> None:
    _, question = asking(api, SECRET)
    path, given = f"/elicitations/{question['id']}", {"action": "accept", "content": {"api_key": "sk-4711-abcd"}}

    refused = problem_of(api.http.post(path, json=given), 409, "conflict")
    wrong = api.http.post(path, json={**given, "content": {"api_key": "sk-4711-abcdefgh"}})

    assert "PLANQ_SECRET_KEYS" in refused["detail"]
    assert (wrong.status_code, "4711" in wrong.text + str(refused)) == (422, False)
    assert api.http.get(path).json()["status"] == "open"
    assert api.http.post(path, json={"action": "decline"}).json()["status"] == "declined"

"""Pausing, resuming and settling over HTTP."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import Pool
from planq.shared.kernel.wakes import Wake
from tests.integration.api.conftest import Api, problem_of
from tests.integration.api.control import JobDriver, begun, call, failed_job


@pytest.fixture
def api(control_api: Api) -> Api:
    return control_api


def post(api: Api, job_id: str, what: str, body: Any = None) -> httpx.Response:
    return api.http.post(f"/jobs/{job_id}/{what}", **({} if body is None else {"json": body}))


def document(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def settle(api: Api, job_id: str, index: int | str, outcome: str, **more: Any) -> httpx.Response:
    return post(api, job_id, f"steps/{index}/settle", {"outcome": outcome, **more})


# Pause ------------------------------------------------------------------------------------------------------------


def test_of_a_paused_job_nothing_begins_until_it_is_resumed(api: Api, wakes: list[Wake]) -> None:
    story = begun(api, call("look"), call("put"))
    running = story.claim(0)
    assert running is not None
    wakes.clear()

    paused = document(post(api, story.id, "pause"))
    again = document(post(api, story.id, "pause"))

    assert paused["paused_at"] is not None
    assert (paused["status"], paused["expires_at"]) == ("executing", None)
    assert again == paused
    story.succeed_claimed(running)
    assert story.statuses() == ["succeeded", "ready"]
    assert story.claim(1) is None
    assert wakes == []

    resumed = document(post(api, story.id, "resume"))

    assert resumed["paused_at"] is None
    assert resumed["expires_at"] is not None
    assert wakes == [Wake(StepRef(UUID(story.id), 0, 1), Pool.IO, "put")]
    story.succeed(1)
    assert story.seen()["status"] == "responding"


def test_a_job_that_is_paused_in_the_queue_is_not_planned(api: Api, wakes: list[Wake]) -> None:
    story = JobDriver(api, api.submit({"input": "x"})["id"])
    wakes.clear()
    document(post(api, story.id, "pause"))

    assert story.claim_stage() is None

    document(post(api, story.id, "resume"))
    assert wakes == [Wake.plan(UUID(story.id))]
    assert story.claim_stage() is not None


def test_a_paused_job_can_be_cancelled(api: Api) -> None:
    story = begun(api, call("look"))
    document(post(api, story.id, "pause"))

    cancelled = document(post(api, story.id, "cancel"))

    assert (cancelled["status"], cancelled["paused_at"]) == ("cancelled", None)


def test_who_waits_for_a_cancelled_child_job_goes_on_at_once(api: Api, wakes: list[Wake]) -> None:
    """The next child in its place, then the step that waits for both; a sweep published these up to 3 s later."""
    story = begun(api, call("look"))
    first, second = story.delegate(0, most=1)
    wakes.clear()

    document(post(api, first.id, "cancel"))
    assert wakes == [Wake.plan(UUID(second.id))]
    document(post(api, second.id, "cancel"))
    assert wakes[1:] == [Wake(StepRef(UUID(story.id), 0, 0), Pool.IO, "look")]
    assert story.claim(0) is not None


def test_a_job_that_has_ended_cannot_be_paused(api: Api) -> None:
    story = failed_job(api, "tool_error")

    assert problem_of(post(api, story.id, "pause"), 409, "conflict")["job_status"] == "completed"


# Resume -----------------------------------------------------------------------------------------------------------


def test_a_job_with_failed_steps_tries_again_what_has_not_succeeded(api: Api, wakes: list[Wake]) -> None:
    story = failed_job(api, "tool_error")
    before = story.seen()
    wakes.clear()

    resumed = document(post(api, story.id, "resume"))

    assert (resumed["status"], resumed["answer"], resumed["finished_at"]) == ("executing", None, None)
    assert [step["status"] for step in resumed["steps"]] == ["succeeded", "ready", "pending"]
    assert resumed["steps"][0] == before["steps"][0]
    assert resumed["steps"][1]["error"] is None
    assert wakes == [Wake(StepRef(UUID(story.id), 0, 1), Pool.IO, "mail")]
    assert story.claim(0) is None
    story.succeed(1, 2)
    story.answer("all did")
    seen = story.seen()
    assert (seen["status"], seen["answer"]) == ("completed", "all did")
    assert [step["attempt"] for step in seen["steps"]] == [1, 2, 1]
    told = api.jobs.execute("SELECT data FROM events WHERE job_id = %s AND kind = 'job_resumed'", story.id)
    assert told[0]["data"]["answer"] == "two did not work"


def test_a_job_whose_answer_failed_is_only_answered_again(api: Api, wakes: list[Wake]) -> None:
    story = begun(api, call("mail"))
    story.succeed(0)
    story.answer(None)
    assert story.seen()["error"]["code"] == "transient"
    wakes.clear()

    resumed = document(post(api, story.id, "resume", {}))

    assert (resumed["status"], resumed["error"]) == ("responding", None)
    assert wakes == [Wake.respond(UUID(story.id), 3)]
    assert story.statuses() == ["succeeded"]


def test_a_job_that_goes_on_is_not_changed_by_a_resume(api: Api, wakes: list[Wake]) -> None:
    story = begun(api, call("look"))
    before = story.seen()
    wakes.clear()

    assert document(post(api, story.id, "resume")) == before
    assert wakes == []


@pytest.mark.parametrize("ended", ["completed", "cancelled"])
def test_what_has_nothing_to_try_again_is_refused_with_what_to_do(api: Api, ended: str) -> None:
    story = begun(api, call("look"))
    if ended == "completed":
        story.succeed(0)
        story.answer()
    else:
        document(post(api, story.id, "cancel"))

    problem = problem_of(post(api, story.id, "resume"), 409, "conflict")

    assert problem["job_status"] == ended
    assert "fork" in problem["detail"]
    assert story.seen()["status"] == ended


def test_an_unsafe_call_that_may_have_happened_is_not_repeated_unless_asked(api: Api, wakes: list[Wake]) -> None:
    story = failed_job(api, "timeout")
    before = story.seen()
    wakes.clear()

    problem = problem_of(post(api, story.id, "resume"), 409, "outcome_unknown")

    assert problem["errors"] == [{"step": 1, "tool_name": "mail", "code": "timeout", "message": "no"}]
    assert "repeat_unsafe" in problem["detail"]
    assert story.seen() == before
    assert wakes == []

    resumed = document(post(api, story.id, "resume", {"repeat_unsafe": True}))

    assert [step["status"] for step in resumed["steps"]] == ["succeeded", "ready", "pending"]
    claim = story.claim(1)
    assert claim is not None
    assert not claim.in_doubt


def test_a_tool_that_can_find_out_does_so_before_it_is_called_again(api: Api) -> None:
    """And not before the worker of the earlier call must have noticed that it is over."""
    story = failed_job(api, "outcome_unknown", tool="pay")

    document(post(api, story.id, "resume"))

    assert story.claim(1) is None
    left = api.jobs.execute("SELECT run_at - now() AS left FROM steps WHERE job_id = %s AND index = 1", story.id)
    assert timedelta(seconds=5) < left[0]["left"] <= timedelta(seconds=15)
    api.jobs.execute("UPDATE steps SET run_at = now() WHERE job_id = %s", story.id)
    claim = story.claim(1)
    assert claim is not None
    assert claim.in_doubt


def test_an_unsafe_call_that_was_cut_off_when_its_job_expired_is_not_repeated(api: Api) -> None:
    story = begun(api, call("mail"))
    assert story.claim(0) is not None
    api.jobs.execute("UPDATE jobs SET expires_at = now() WHERE id = %s", story.id)
    api.jobs.execute('SELECT planq_expire_job(%s, false, \'{"code": "job_timeout"}\')', story.id)
    assert story.statuses() == ["cancelled"]

    problem = problem_of(post(api, story.id, "resume"), 409, "outcome_unknown")

    assert problem["errors"][0]["code"] == "cancelled"
    assert story.seen()["status"] == "failed"


# Settle -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def asking(api: Api) -> JobDriver:
    """A job whose first step of two waits to be told what became of its call."""
    story = begun(api, call("sign"), call("put"))
    story.ask(0)
    return story


def test_a_waiting_question_is_shown(asking: JobDriver) -> None:
    seen = asking.seen()

    assert seen["status"] == "input_required"
    assert seen["steps"][0]["status"] == "waiting"
    question = seen["steps"][0]["question"]
    assert (question["kind"], question["message"]) == ("outcome", "did it happen?")
    assert [step["recovery"] for step in seen["steps"]] == ["ask", None]


def test_what_happened_succeeds_with_its_output(api: Api, asking: JobDriver, wakes: list[Wake]) -> None:
    settled = document(settle(api, asking.id, 0, "happened", output={"text": "signed"}))

    assert settled["status"] == "executing"
    assert [step["status"] for step in settled["steps"]] == ["succeeded", "ready"]
    assert settled["steps"][0]["output"] == {"text": "signed"}
    assert settled["steps"][0]["question"] is None
    assert wakes == [Wake(StepRef(UUID(asking.id), 0, 1), Pool.IO, "put")]


def test_a_large_output_is_kept_apart_as_that_of_a_worker_is(api: Api) -> None:
    story = begun(api, call("sign"), call("put", "$0.output.text"))
    story.ask(0)
    output = {"text": "short", "more": "x" * 1_200}

    settled = document(settle(api, story.id, 0, "happened", output=output))

    first = settled["steps"][0]
    assert (first["output"], first["output_ref"]["bytes"]) == (None, len(json.dumps(output, separators=(",", ":"))))
    assert api.http.get(first["output_ref"]["href"]).json() == output
    claim = story.claim(1)
    assert claim is not None
    assert claim.outputs[0].at(("text",)) == "short"


def test_an_artifact_that_was_made_can_be_had(api: Api, asking: JobDriver) -> None:
    output = {"text": "x", "artifact_id": str(uuid4()), "artifact": {"a": 1}, "_metadata": {}}

    document(settle(api, asking.id, 0, "happened", output=output))

    assert api.http.get(f"/artifacts/{output['artifact_id']}").json() == output


def test_what_did_not_happen_runs_again(api: Api, asking: JobDriver, wakes: list[Wake]) -> None:
    settled = document(settle(api, asking.id, 0, "did_not_happen"))

    assert [step["status"] for step in settled["steps"]] == ["ready", "pending"]
    assert wakes == [Wake(StepRef(UUID(asking.id), 0, 0), Pool.IO, "sign")]
    asking.succeed(0, 1)
    assert asking.seen()["steps"][0]["attempt"] == 2


def test_what_stays_unknown_fails_and_is_not_repeated_later(api: Api, asking: JobDriver, wakes: list[Wake]) -> None:
    settled = document(settle(api, asking.id, 0, "unknown"))

    assert settled["status"] == "responding"
    assert [step["status"] for step in settled["steps"]] == ["failed", "skipped"]
    assert settled["steps"][0]["error"]["code"] == "outcome_unknown"
    assert wakes == [Wake.respond(UUID(asking.id), 2)]
    asking.answer()
    problem_of(post(api, asking.id, "resume"), 409, "outcome_unknown")


def test_a_second_answer_is_refused(api: Api, asking: JobDriver) -> None:
    document(settle(api, asking.id, 0, "unknown"))

    problem = problem_of(settle(api, asking.id, 0, "happened", output={"text": "x"}), 409, "conflict")

    assert problem["step_status"] == "failed"
    assert asking.seen()["steps"][0]["error"]["code"] == "outcome_unknown"


@pytest.mark.parametrize(
    ("outcome", "more", "other"),
    [
        ("happened", {"output": {"text": "signed", "n": 1}}, {"outcome": "happened", "output": {"text": "other"}}),
        ("did_not_happen", {}, {"outcome": "unknown"}),
        ("unknown", {}, {"outcome": "did_not_happen"}),
    ],
)
def test_the_same_answer_again_changes_nothing_and_another_one_is_refused(
    api: Api, asking: JobDriver, outcome: str, more: dict[str, Any], other: dict[str, Any]
) -> None:
    first = document(settle(api, asking.id, 0, outcome, **more))

    again = document(settle(api, asking.id, 0, outcome, **dict(reversed(more.items()))))

    assert again == first
    problem_of(post(api, asking.id, "steps/0/settle", other), 409, "conflict")


def test_a_large_output_may_be_said_twice_too(api: Api, asking: JobDriver) -> None:
    output = {"text": "x" * 1_500}

    assert document(settle(api, asking.id, 0, "happened", output=output)) == document(
        settle(api, asking.id, 0, "happened", output=output)
    )
    problem_of(settle(api, asking.id, 0, "happened", output={"text": "y" * 1_500}), 409, "conflict")


def test_a_step_that_asks_nothing_cannot_be_settled(api: Api, asking: JobDriver) -> None:
    assert problem_of(settle(api, asking.id, 1, "unknown"), 409, "conflict")["step_status"] == "pending"


@pytest.mark.parametrize(
    ("output", "text", "pointers"),
    [
        (None, "found none", None),
        ("signed", "expected the object", None),
        ({"n": 1}, "'text'", ["/output"]),
        ({"text": 1, "n": "x"}, "/output/n", ["/output/text", "/output/n"]),
    ],
)
def test_an_output_that_the_tool_cannot_have_returned_is_refused_with_all_its_defects(
    api: Api, asking: JobDriver, output: Any, text: str, pointers: list[str] | None
) -> None:
    problem = problem_of(settle(api, asking.id, 0, "happened", output=output), 422, "invalid_request")

    assert text in problem["detail"]
    assert pointers is None or [error["pointer"] for error in problem["errors"]] == pointers
    assert asking.seen()["status"] == "input_required"


def test_an_output_that_is_too_large_is_refused(api: Api, asking: JobDriver) -> None:
    problem = problem_of(settle(api, asking.id, 0, "happened", output={"text": "x" * 2_000}), 413, "too_large")

    assert problem["limit"] == 2_000


def test_an_output_belongs_only_to_what_happened(api: Api, asking: JobDriver) -> None:
    problem = problem_of(settle(api, asking.id, 0, "unknown", output={"text": "x"}), 422, "invalid_request")

    assert "output" in problem["detail"]


def test_where_nobody_offers_the_tool_any_more_any_object_is_an_output(api: Api, asking: JobDriver) -> None:
    api.jobs.execute("UPDATE steps SET tool_name = 'gone' WHERE job_id = %s AND index = 0", asking.id)

    settled = document(settle(api, asking.id, 0, "happened", output={"any": "thing"}))

    assert settled["steps"][0]["output"] == {"any": "thing"}


@pytest.mark.parametrize(
    "index", ["2", "x", "-1", "1.0", "%C2%B2", "999999999", "9999999999", "99999999999999999999"]
)
def test_a_step_that_is_not_there_is_not_found(api: Api, asking: JobDriver, index: str) -> None:
    problem_of(settle(api, asking.id, index, "unknown"), 404, "not_found")


# Bad input --------------------------------------------------------------------------------------------------------

ACTIONS = [("pause", None), ("resume", None), ("fork", {}), ("steps/0/settle", {"outcome": "unknown"})]
NAMES = [action for action, _ in ACTIONS]


@pytest.mark.parametrize(("action", "body"), ACTIONS, ids=NAMES)
def test_jobs_that_are_unknown_foreign_or_no_job_at_all_are_not_found(api: Api, action: str, body: Any) -> None:
    foreign = begun(api, call("sign"))
    foreign.ask(0)
    api.jobs.execute("INSERT INTO tenants (id) VALUES ('other') ON CONFLICT DO NOTHING")
    api.jobs.execute("UPDATE jobs SET tenant_id = 'other' WHERE id = %s", foreign.id)

    for job_id in (str(uuid4()), "nonsense", "%00", foreign.id):
        problem_of(post(api, job_id, action, body), 404, "not_found")


@pytest.mark.parametrize(
    ("action", "body", "text"),
    [
        ("resume", {"repeat_unsafe": "yes"}, "repeat_unsafe"),
        ("resume", {"unsafe": True}, "known fields are repeat_unsafe"),
        ("fork", {"from_step": -1}, "from_step"),
        ("fork", {"from_step": True}, "from_step"),
        ("fork", {"tools": []}, "known fields are"),
        ("fork", {"limits": {"max_plan_steps": 0}}, "limits.max_plan_steps"),
        ("steps/0/settle", {}, "outcome"),
        ("steps/0/settle", {"outcome": "yes"}, "'happened', 'did_not_happen' or 'unknown'"),
        ("steps/0/settle", {"outcome": "unknown", "why": 1}, "known fields are"),
        ("steps/0/settle", [], "body"),
    ],
)
def test_a_bad_body_is_refused_with_its_place_and_changes_nothing(
    api: Api, asking: JobDriver, action: str, body: Any, text: str
) -> None:
    before = asking.seen()

    problem = problem_of(post(api, asking.id, action, body), 422, "invalid_request")

    assert text in problem["detail"]
    assert problem["errors"]
    assert asking.seen() == before


@pytest.mark.parametrize("action", ["resume", "fork", "steps/0/settle"])
def test_a_body_that_is_no_json_is_refused(api: Api, asking: JobDriver, action: str) -> None:
    response = api.http.post(
        f"/jobs/{asking.id}/{action}", content=b'{"x": NaN', headers={"Content-Type": "application/json"}
    )

    problem_of(response, 400, "malformed_json")

"""Forking jobs over HTTP: what is taken over, what is refused, and that nothing else changes."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.wakes import Wake
from tests.integration.api.conftest import Api, problem_of
from tests.integration.api.control import JobDriver, begun, call, failed_job, plan

CALLS = [call("look", "a"), call("calc", "$0.output.text"), call("mail", "$1.output.text"), call("calc", "b")]


@pytest.fixture
def api(control_api: Api) -> Api:
    return control_api


@pytest.fixture
def source(api: Api) -> JobDriver:
    """A job that has completed, all its steps succeeded."""
    story = begun(api, *CALLS, input="report", metadata={"who": "me"}, limits={"plan_timeout_seconds": 20})
    story.succeed(0, 1, 2, 3)
    story.answer()
    return story


def fork(api: Api, source: JobDriver, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    return api.http.post(f"/jobs/{source.id}/fork", **({} if body is None else {"json": body}), headers=headers)


def forked(api: Api, source: JobDriver, body: dict[str, Any] | None = None) -> JobDriver:
    """A fork that must be accepted."""
    response = fork(api, source, body)
    assert response.status_code == 202, response.text
    return JobDriver(api, response.json()["id"])


def origins(story: JobDriver) -> dict[int, Any]:
    return {step["index"]: step["reused_from"] for step in story.seen()["steps"]}


def jobs(api: Api) -> int:
    return int(api.jobs.execute("SELECT count(*) AS n FROM jobs")[0]["n"])


def test_a_fork_of_what_has_succeeded_only_answers_again(api: Api, source: JobDriver, wakes: list[Wake]) -> None:
    before = source.seen()

    response = fork(api, source)
    new = response.json()

    assert response.status_code == 202
    assert response.headers["location"] == f"/jobs/{new['id']}"
    assert (new["status"], new["forked_from"], new["input"]) == ("queued", source.id, "report")
    assert (new["metadata"], new["plan"]) == ({"who": "me"}, before["plan"])
    assert wakes == [Wake.plan(UUID(new["id"]))]
    assert new == {**JobDriver(api, new["id"]).seen(), "steps": []}

    story = JobDriver(api, new["id"])
    assert not story.accept()
    seen = story.seen()
    assert seen["status"] == "responding"
    assert [step["output"] for step in seen["steps"]] == [step["output"] for step in before["steps"]]
    assert origins(story) == {index: {"job_id": source.id, "index": index} for index in range(4)}
    assert [step["attempt"] for step in seen["steps"]] == [0, 0, 0, 0]
    assert source.seen() == before


def test_an_edit_runs_what_it_affects_and_nothing_else(api: Api, source: JobDriver) -> None:
    story = forked(api, source, {"plan": plan(*CALLS[:3], call("calc", "new")), "input": "other"})

    assert story.accept()

    assert story.statuses() == ["succeeded", "succeeded", "succeeded", "ready"]
    assert origins(story)[3] is None
    assert story.seen()["input"] == "other"


def test_what_depends_on_the_edit_runs_with_the_new_outputs(api: Api, source: JobDriver) -> None:
    story = forked(api, source, {"plan": plan(call("look", "new"), *CALLS[1:])})

    assert story.accept()

    assert story.statuses() == ["ready", "pending", "pending", "succeeded"]
    story.succeed(0, 1, 2)
    story.answer()
    assert story.seen()["steps"][2]["arguments"] == {"text": f"of {story.id}"}


def test_from_a_step_on_everything_runs(api: Api, source: JobDriver) -> None:
    story = forked(api, source, {"from_step": 2})

    assert story.accept()

    assert story.statuses() == ["succeeded", "succeeded", "ready", "ready"]


def test_a_fork_of_an_unfinished_job_takes_over_what_has_succeeded_by_now(api: Api) -> None:
    source = begun(api, *CALLS)
    source.succeed(0)

    story = forked(api, source)
    source.succeed(1)

    assert story.accept()
    assert story.statuses() == ["succeeded", "ready", "pending", "ready"]
    assert source.seen()["status"] == "executing"


def test_a_fork_of_a_failed_or_cancelled_job_and_of_a_fork_works(api: Api) -> None:
    failed = failed_job(api, "timeout")
    one = forked(api, failed, {"plan": plan(call("look"), call("put"))})
    assert one.accept()
    assert one.statuses() == ["succeeded", "ready"]
    assert api.http.post(f"/jobs/{one.id}/cancel").status_code == 200

    two = forked(api, one)

    assert two.accept()
    assert origins(two) == {0: {"job_id": one.id, "index": 0}, 1: None}


def test_a_dry_run_says_what_would_happen_and_stores_nothing(api: Api, source: JobDriver, wakes: list[Wake]) -> None:
    before = jobs(api)

    response = fork(api, source, {"plan": plan(CALLS[0], CALLS[2] | {"arguments": {"text": "x"}}), "dry_run": True})

    assert response.status_code == 200
    assert response.json() == {
        "reuse": [
            {
                "index": 0,
                "tool_name": "look",
                "effect": "read",
                "reused_from": {"job_id": source.id, "index": 0},
            }
        ],
        "run": [{"index": 1, "tool_name": "mail", "effect": "unsafe"}],
        "in_doubt": [],
    }
    assert jobs(api) == before
    assert wakes == []


def test_a_defective_plan_is_refused_with_all_its_errors_and_nothing_is_stored(api: Api, source: JobDriver) -> None:
    before, seen = jobs(api), source.seen()

    problem = problem_of(
        fork(api, source, {"plan": plan(call("look", "$1.output.text"), call("nope"))}), 422, "plan_invalid"
    )

    assert [error["error"]["type"] for error in problem["errors"]] == ["forward_reference", "unknown_tool"]
    assert (jobs(api), source.seen()) == (before, seen)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"from_step": 4}, "0 to 3"),
        ({"plan": plan(call("look")), "from_step": 1}, "0 to 0"),
        ({"input": " "}, "white space"),
        ({"limits": {"plan_timeout_seconds": 301}}, "can only lower"),
        ({"metadata": {"a": [[]] * 3, "b": {"c": "x" * 20_000}}}, "metadata"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_stored(api: Api, source: JobDriver, body: Any, text: str) -> None:
    before = jobs(api)

    response = fork(api, source, body)

    assert response.status_code in (413, 422)
    assert text in response.json()["detail"]
    assert jobs(api) == before


DOUBTS = {
    "running": ("outcome_unknown", "it runs now"),
    "asking": ("outcome_unknown", "the worker was lost"),
    "to find out": ("outcome_unknown", "the worker was lost"),
    "failed": ("timeout", "no"),
    "cancelled": ("cancelled", "cut off when its job ended"),
}


def doubtful(api: Api, how: str) -> JobDriver:
    """A job whose second step, an unsafe one, may have taken effect."""
    story = begun(api, call("look"), call("pay", "x"), call("put"))
    story.succeed(0)
    if how == "asking":
        story.ask(1)
    elif how == "to find out":
        story.lose(1)
    elif how == "failed":
        story.fail(1, "timeout")
    else:
        assert story.claim(1) is not None
        if how == "cancelled":
            assert api.http.post(f"/jobs/{story.id}/cancel").status_code == 200
    return story


@pytest.mark.parametrize("body", [{}, {"from_step": 0}, {"from_step": 1}, {"plan": plan(call("pay", "x"))}])
@pytest.mark.parametrize("how", DOUBTS)
def test_an_unsafe_call_that_may_have_happened_is_not_made_again_unless_asked(
    api: Api, wakes: list[Wake], how: str, body: dict[str, Any]
) -> None:
    source = doubtful(api, how)
    before, seen = jobs(api), source.seen()
    place = 0 if "plan" in body else 1
    wakes.clear()

    problem = problem_of(fork(api, source, body), 409, "outcome_unknown")

    code, message = DOUBTS[how]
    assert problem["errors"] == [
        {"step": place, "source_step": 1, "tool_name": "pay", "code": code, "message": message}
    ]
    assert "repeat_unsafe" in problem["detail"]
    assert (jobs(api), source.seen(), wakes) == (before, seen, [])

    preview = fork(api, source, {**body, "dry_run": True}).json()
    step = {"index": place, "tool_name": "pay", "effect": "unsafe"}
    assert step in preview["run"]
    assert preview["in_doubt"] == [{**step, "same_as": {"job_id": source.id, "index": 1}}]

    assert forked(api, source, {**body, "repeat_unsafe": True}).accept()


def test_a_fork_that_does_not_make_the_doubtful_call_is_accepted(api: Api) -> None:
    source = doubtful(api, "failed")

    for calls in ([call("look"), call("put")], [call("look"), call("pay", "another")]):
        assert forked(api, source, {"plan": plan(*calls)}).accept()


@pytest.mark.parametrize("code", ["tool_error", "rate_limited"])
def test_an_unsafe_call_that_did_not_happen_is_made(api: Api, code: str) -> None:
    source = failed_job(api, code)

    assert forked(api, source).accept()


def test_an_unsafe_call_that_succeeded_is_made_again_from_that_step_on(api: Api, source: JobDriver) -> None:
    story = forked(api, source, {"from_step": 2})

    assert story.accept()
    assert story.statuses()[2] == "ready"


def test_limits_are_those_of_the_source_unless_named(api: Api, source: JobDriver) -> None:
    def limits(body: dict[str, Any]) -> Any:
        story = forked(api, source, {"limits": body})
        found = Limits.from_json(api.jobs.execute("SELECT limits FROM jobs WHERE id = %s", story.id)[0]["limits"])
        return found.plan_timeout_seconds, found.step_timeout_seconds

    assert limits({}) == (20.0, 300.0)
    assert limits({"step_timeout_seconds": 5}) == (20.0, 5.0)
    assert limits({"plan_timeout_seconds": 200}) == (200.0, 300.0)


def test_a_fork_may_use_the_tools_that_its_source_may(api: Api) -> None:
    source = begun(api, call("look"), tools=["look"])

    problem = problem_of(fork(api, source, {"plan": plan(call("mail"))}), 422, "plan_invalid")

    assert problem["errors"][0]["error"]["available_tools"] == ["look"]


@pytest.mark.parametrize("why", ["queued", "completed", "refused"])
def test_what_has_no_valid_plan_cannot_be_forked(api: Api, why: str) -> None:
    story = JobDriver(api, api.submit({"input": "x"})["id"])
    if why == "completed":
        api.jobs.complete(story.id)
    elif why == "refused":
        api.jobs.execute(
            "INSERT INTO plans (job_id, round, tenant_id, source, body, errors) "
            "VALUES (%s, 0, 'default', 'model', '{}', '[]')",
            story.id,
        )

    problem = problem_of(fork(api, story, {"plan": plan(call("look"))}), 409, "conflict")

    assert why in problem["detail"]


def test_the_plan_of_an_orchestration_cannot_be_forked(api: Api) -> None:
    story = begun(api, *CALLS)
    api.jobs.execute("UPDATE plans SET source = 'orchestrate' WHERE job_id = %s", story.id)

    told = problem_of(fork(api, story, {}), 409, "conflict")["detail"]
    assert "fork the job that it works for" in told


def further_round(
    api: Api, story: JobDriver, source: str, tool: str, arguments: dict[str, Any], **columns: Any
) -> None:
    """Give a job one round more, of one step that has succeeded."""
    api.jobs.execute(
        "INSERT INTO plans (job_id, round, tenant_id, source) VALUES (%s, 1, 'default', %s)", story.id, source
    )
    api.jobs.execute(
        "INSERT INTO steps (job_id, round, index, tenant_id, tool_name, pool, effect, status, arguments, retry, "
        "timeout_seconds, attempt, output, verbatim, finished_at) SELECT job_id, 1, max(index) + 1, 'default', %s, "
        "'io', max(effect) FILTER (WHERE tool_name = %s), 'succeeded', %s, '{}', 60, 1, '{\"text\": \"more\"}', %s, "
        "now() FROM steps WHERE job_id = %s GROUP BY job_id",
        *(tool, tool, json.dumps(arguments), columns.get("verbatim", False), story.id),
    )
    api.jobs.execute("UPDATE jobs SET round = 1 WHERE id = %s", story.id)


def test_a_fork_has_the_plan_of_the_first_round_and_calls_the_chained_tool_anew(api: Api, source: JobDriver) -> None:
    further_round(api, source, "chained", "look", {"query": "a"}, verbatim=True)

    story = forked(api, source)

    assert not story.accept()
    assert origins(story) == {index: {"job_id": source.id, "index": index} for index in range(4)}


def test_a_fork_of_a_loop_has_a_plan_of_its_own_that_takes_over_outcomes_of_any_round(
    api: Api, source: JobDriver
) -> None:
    said = call("look", "$0.output.text")  # as data: in no round it refers to anything
    further_round(api, source, "model", "look", said["arguments"], verbatim=True)
    api.jobs.execute("UPDATE jobs SET strategy = 'react' WHERE id = %s", source.id)
    assert "needs a `plan`" in problem_of(fork(api, source), 409, "conflict")["detail"]

    literal = {**said, "arguments": {name: f"\\{text}" for name, text in said["arguments"].items()}}
    body = {"plan": plan(CALLS[0], CALLS[1], CALLS[2], literal, said), "dry_run": True}
    seen = fork(api, source, body).json()

    assert [(step["index"], step["reused_from"]["index"]) for step in seen["reuse"]] == [
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 4),
    ]
    assert [step["index"] for step in seen["run"]] == [4]


def test_a_fork_has_the_agent_and_the_budget_of_its_source(api: Api) -> None:
    assert api.http.put("/agents/forked", json={"name": "forked"}).status_code in (200, 201)
    limits = {"budget": {"max_steps": 9}}
    job = api.submit({"input": "x", "agent": "forked", "with": {"a": 1}, "limits": limits})
    api.jobs.execute("UPDATE jobs SET status = 'failed', finished_at = now() WHERE id = %s", job["id"])
    api.jobs.execute(
        "INSERT INTO plans (job_id, round, tenant_id, source, body) VALUES (%s, 0, 'default', 'model', %s)",
        job["id"],
        json.dumps(plan(call("look"))),
    )

    made = fork(api, JobDriver(api, job["id"]), {}).json()
    other = fork(api, JobDriver(api, job["id"]), {"limits": {"budget": {"max_steps": 8}}}).json()

    assert (made["agent"], made["forked_from"]) == (job["agent"], job["id"])
    rows = api.jobs.execute(
        "SELECT budget, with_input FROM jobs WHERE id = ANY (%s::uuid[]) ORDER BY id", [made["id"], other["id"]]
    )
    assert [row["budget"]["max_steps"] for row in rows] == [9, 8]
    assert {json.dumps(row["with_input"]) for row in rows} == {'{"a": 1}'}


def test_a_fork_has_the_priority_of_its_source(api: Api) -> None:
    source = begun(api, *CALLS, priority="bulk")
    source.succeed(0, 1, 2, 3)
    source.answer()

    assert forked(api, source).seen()["priority"] == "bulk"


def test_the_same_key_gives_the_same_fork_and_another_request_is_a_conflict(api: Api, source: JobDriver) -> None:
    key = {"Idempotency-Key": str(uuid4())}
    first = fork(api, source, {"from_step": 1}, **key)
    again = fork(api, source, {"from_step": 1}, **key)
    other_body = fork(api, source, {"from_step": 2}, **key)
    other_job = fork(api, begun(api, *CALLS), {"from_step": 1}, **key)

    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    problem_of(other_body, 409, "conflict")
    problem_of(other_job, 409, "conflict")
    problem_of(fork(api, source, {}, **{"Idempotency-Key": "a b"}), 400, "invalid_idempotency_key")


def test_a_key_without_a_body_is_good_too(api: Api, source: JobDriver) -> None:
    key = {"Idempotency-Key": str(uuid4())}

    assert fork(api, source, None, **key).json()["id"] == fork(api, source, None, **key).json()["id"]

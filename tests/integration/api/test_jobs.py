"""Looking at jobs, listing and cancelling them over HTTP."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from planq.api.schemas import JobDocument
from planq.shared.agentic.references.resolution import as_called
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.store.transitions import PostgresJobStore
from planq.shared.kernel.usage import ModelCall, Purpose
from planq.shared.platform.database import Database
from tests.integration.api.conftest import Api, MakeApi, problem_of, search
from tests.support.claiming import claim_stage, claim_step

USAGE = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
    "cost_usd": None,
}
PLAN = {
    "type": "tool_calls",
    "reasoning": "because",
    "calls": [
        search(),
        {"tool_name": "report_write", "arguments": {"title": "About $0.output.text"}},
        {"tool_name": "report_write", "arguments": {"title": "$0.output.text"}},
        search("never"),
    ],
}


def test_a_job_shows_its_plan_and_what_became_of_its_steps(api: Api) -> None:
    job = api.submit({"input": "report", "plan": PLAN})
    api.jobs.run_plan(job["id"], PLAN, {0: {"text": "Rust", "count": 2**70}, 1: {"text": "\ud800"}, 2: "no paper"})

    seen = api.http.get(f"/jobs/{job['id']}").json()

    assert list(seen) == [
        *(
            "id",
            "status",
            "outcome",
            "incomplete",
            "strategy",
            "priority",
            "respond",
            "round",
            "stop_reason",
            "input",
            "answer",
        ),
        *("preview", "error", "model_calls"),
        *("usage", "created_at", "started_at", "finished_at", "paused_at", "expires_at", "forked_from"),
        *(
            "user",
            "metadata",
            "agent",
            "parent",
            "depth",
            "conversation_id",
            "batch_id",
            "batch_line",
            "custom_id",
            "open_questions",
            "plan",
            "plan_errors",
            "rounds",
            "steps",
            "output",
            "output_ref",
            "chained",
            "children",
        ),
        *("tree_usage", "warnings", "budget", "retry", "model_settings", "parts"),
    ]
    assert JobDocument.model_validate(seen)
    assert (seen["status"], seen["plan"], seen["plan_errors"]) == ("responding", PLAN, None)
    assert seen["rounds"] == [
        {"round": 0, "source": "caller", "plan": PLAN, "plan_errors": None, "steps": [0, 1, 2, 3]}
    ]
    assert (seen["model_calls"], seen["usage"]) == (0, USAGE)
    first, second, third, fourth = seen["steps"]
    assert list(first) == [
        *("index", "round", "kind", "tool_name", "status", "attempt", "arguments", "output", "output_ref", "content"),
        *("error", "depends_on", "reused_from", "recovery", "question", "tool_away_since", "progress", "cost_usd"),
        *("worker_id", "started_at", "finished_at"),
    ]
    assert (first["status"], first["output"], first["attempt"]) == ("succeeded", {"text": "Rust", "count": 2**70}, 1)
    assert second["arguments"] == {"title": "About $0.output.text"}
    assert second["output"] == {"text": "\ud800"}
    assert third["arguments"] == {"title": "Rust"}
    assert (third["status"], third["output"], third["error"]["message"]) == ("failed", None, "no paper")
    assert third["depends_on"] == [0, 1]
    assert (fourth["status"], fourth["attempt"], fourth["started_at"]) == ("skipped", 0, None)


def test_a_refused_plan_is_shown_with_its_defects(api: Api) -> None:
    job = api.submit()
    plan = {"type": "tool_calls", "calls": [{"tool_name": "nobody", "arguments": {}}]}
    error = {"tool_index": 0, "argument": "", "template": None, "error": {"type": "unknown_tool"}}

    async def refuse(database: Database) -> None:
        store = PostgresJobStore(database, new_id(), as_called)
        claim = await claim_stage(store, UUID(job["id"]), [JobStatus.QUEUED])
        assert claim is not None
        call = ModelCall(Purpose.PLAN, "m", 5, input_tokens=7, output_tokens=3, cost_usd=Decimal("0.25"))
        assert (await store.refuse_plan(claim, "model", plan, [error], [call])).applied

    api.jobs.run(refuse)

    seen = api.http.get(f"/jobs/{job['id']}").json()
    assert JobDocument.model_validate(seen)
    assert (seen["plan"], seen["plan_errors"], seen["steps"]) == (plan, [error], [])
    assert (seen["model_calls"], seen["usage"]) == (
        1,
        {**USAGE, "input_tokens": 7, "output_tokens": 3, "cost_usd": 0.25},
    )


def test_a_waiting_step_shows_no_output_yet(api: Api) -> None:
    job = api.submit({"plan": {"calls": [search()]}})
    api.jobs.run_plan(job["id"], {"calls": [search()]}, {})

    async def suspend(database: Database) -> None:
        store = PostgresJobStore(database, new_id(), as_called)
        step = await claim_step(store, StepRef(UUID(job["id"]), 0, 0))
        assert step is not None
        assert await store.suspend_step(step, timedelta(hours=1), {"text": "later", "count": 1})

    api.jobs.run(suspend)

    (step,) = api.http.get(f"/jobs/{job['id']}").json()["steps"]
    assert (step["status"], step["output"]) == ("waiting", None)


def test_the_time_and_the_answer_of_a_finished_job_are_shown(api: Api) -> None:
    job = api.submit()
    api.jobs.complete(job["id"], "42 \u2713")

    seen = api.http.get(f"/jobs/{job['id']}").json()

    assert (seen["status"], seen["answer"], seen["error"]) == ("completed", "42 \u2713", None)
    assert seen["created_at"] <= seen["started_at"] <= seen["finished_at"]
    assert seen["finished_at"].endswith("+00:00")


@pytest.mark.parametrize("path", ["/jobs/{}", "/jobs/{}?wait=5", "/artifacts/{}", "/jobs/nonsense", "/artifacts/%00"])
def test_what_does_not_exist_is_not_found(api: Api, path: str) -> None:
    problem_of(api.http.get(path.format(uuid4())), 404, "not_found")


@pytest.mark.parametrize("path", ["/nothing", "/jobs/", "/jobs/x/y", "/ui/nothing"])
def test_a_path_that_leads_nowhere_is_a_problem_too(api: Api, path: str) -> None:
    problem_of(api.http.get(path), 404, "not_found")


def test_a_method_that_is_not_known_is_a_problem_that_names_the_others(api: Api) -> None:
    response = api.http.delete(f"/jobs/{uuid4()}")

    problem_of(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET, HEAD, OPTIONS"


def test_jobs_are_listed_newest_first_page_by_page(make_api: MakeApi) -> None:
    api = make_api()
    submitted = [api.submit({"input": str(number)})["id"] for number in range(5)]
    api.jobs.complete(submitted[1])

    pages, cursor = [], None
    while True:
        page = api.http.get("/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        pages.append([job["id"] for job in page["items"]])
        if (cursor := page["next_cursor"]) is None:
            break

    newest_first = submitted[::-1]
    assert pages == [newest_first[:2], newest_first[2:4], newest_first[4:]]
    assert [job["id"] for job in api.http.get("/jobs?status=completed").json()["items"]] == [submitted[1]]
    assert "steps" not in api.http.get("/jobs").json()["items"][0]
    api.jobs.execute(
        "UPDATE jobs SET parent_job_id = %s, parent_step_index = 0 WHERE id = %s", submitted[0], submitted[4]
    )
    assert [job["id"] for job in api.http.get("/jobs?roots=true").json()["items"]] == newest_first[1:]
    assert api.http.get("/jobs").json()["items"][0]["parent"]["job_id"] == submitted[0]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("cursor=zzz", "next_cursor"),
        ("cursor=%C3%A4", "next_cursor"),
        ("limit=0", "limit"),
        ("limit=101", "found '101'"),
        ("limit=x", "limit"),
        ("status=done", "'completed'"),
    ],
)
def test_a_bad_listing_is_refused(api: Api, query: str, text: str) -> None:
    assert text in problem_of(api.http.get(f"/jobs?{query}"), 422, "invalid_request")["detail"]


def test_cancelling_ends_the_job_and_its_steps_at_once_and_tells_workers(api: Api) -> None:
    job = api.submit({"plan": PLAN})
    api.jobs.run_plan(job["id"], PLAN, {0: {"text": "Rust", "count": 1}})
    with psycopg.connect(api.settings.database_url, autocommit=True) as listener:
        listener.execute("LISTEN planq_cancelled")
        listener.execute("LISTEN planq_ended")

        cancelled = api.http.post(f"/jobs/{job['id']}/cancel")
        heard = {n.channel: n.payload for n in listener.notifies(timeout=60, stop_after=2)}

    assert cancelled.status_code == 200
    assert cancelled.json()["status"] == "cancelled"
    assert [step["status"] for step in cancelled.json()["steps"]] == ["succeeded", *["cancelled"] * 3]
    assert heard == {"planq_cancelled": job["id"], "planq_ended": job["id"]}


def test_cancelling_twice_is_the_same_as_once(api: Api) -> None:
    job = api.submit()
    first = api.http.post(f"/jobs/{job['id']}/cancel")
    again = api.http.post(f"/jobs/{job['id']}/cancel")

    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()


def test_a_finished_job_cannot_be_cancelled(api: Api) -> None:
    job = api.submit()
    api.jobs.complete(job["id"])

    problem = problem_of(api.http.post(f"/jobs/{job['id']}/cancel"), 409, "conflict")

    assert problem["job_status"] == "completed"
    assert api.http.get(f"/jobs/{job['id']}").json()["status"] == "completed"


def test_cancelling_what_does_not_exist_is_not_found(api: Api) -> None:
    problem_of(api.http.post(f"/jobs/{uuid4()}/cancel"), 404, "not_found")


def test_a_fault_is_a_problem_without_its_cause_and_logged_under_its_id(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api = make_api()

    def broken(wakes: list[Any]) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(api.app.state.services.publisher, "publish_soon", broken)

    response = api.http.post("/jobs", json={"input": "a"})

    problem = problem_of(response, 500, "internal")
    assert "secret" not in response.text
    (record,) = [record for record in caplog.records if record.message == "fault"]
    assert f"urn:uuid:{record.__dict__['fault']}" == problem["instance"]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "secret"


@pytest.mark.parametrize(
    ("sent", "respond"),
    [
        ({"input": "x"}, "model"),
        ({"input": "x", "respond": "none"}, "none"),
        ({"plan": PLAN}, "output"),
        ({"plan": PLAN, "respond": "model"}, "model"),
        ({"plan": PLAN, "strategy": "loop", "input": "x"}, "model"),
    ],
)
def test_a_callers_plan_is_answered_by_its_last_output_unless_somebody_wants_a_model(
    api: Api, sent: dict[str, Any], respond: str
) -> None:
    job = api.submit(sent)

    assert job["respond"] == api.http.get(f"/jobs/{job['id']}").json()["respond"] == respond
    assert job["outcome"] is None


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (
            {"input": "x", "strategy": "loop", "respond": "output"},
            "respond: expected model, or none at all; found output",
        ),
        ({"input": "x", "agent": "clerk", "respond": "none"}, "an agent answers with its model"),
        (
            {"plan": {**PLAN, "on_failure": "answer"}, "strategy": "react", "input": "x"},
            "plan/on_failure: the rounds",
        ),
        ({"input": "x", "respond": "text"}, "respond"),
        ({"plan": {**PLAN, "on_failure": "halt"}}, "on_failure"),
    ],
)
def test_what_only_a_model_can_answer_is_refused_with_another_answer(
    api: Api, sent: dict[str, Any], told: str
) -> None:
    answer = api.http.post("/jobs", json=sent)

    assert answer.status_code == 422
    assert told in answer.text

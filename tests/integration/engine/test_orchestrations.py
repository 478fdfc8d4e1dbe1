"""Orchestrations of agents on the real engine: order, templates, groups, failures, limits, what is told of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.agentic.orchestration.plan import StepType
from planq.shared.kernel.limits import Limits
from planq.shared.subjects.orchestrations.store import PostgresOrchestrations
from planq.worker.agents.orchestration.state_machine import StepPhase, StepProgress, transitions_of
from tests.support.agents import rows
from tests.support.clock import stop_clock
from tests.support.harness import Harness
from tests.support.orchestras import (
    Orchestra,
    agent_step,
    below,
    document,
    group_step,
    orchestrate,
    perform,
    told,
)
from tests.support.waiting import until

Run = Callable[..., Any]


OK = {"ok": {"v": 1}}
BOOM = {"error": "boom"}


def test_steps_run_in_order_and_later_ones_use_what_earlier_ones_found(orchestra: Run) -> None:
    plan = {
        "bindings": {"topic": "rust", "deep": {"list": [1, 2]}},
        "steps": [
            agent_step("find", "a", prompt="On {{ bindings.topic }}", result_key="found"),
            agent_step(
                "use",
                "b",
                prompt="{{ result.found.v }} of {{ bindings.found }}",
                **{"with": {"n": "{{ result.found.v }}", "all": "{{ bindings.deep.list }}"}},
                result_key="used",
            ),
        ],
    }
    agents = {"a": {"ok": {"v": 3}}, "b": {"ok": {"v": "done"}}}

    step, model, _ = orchestra(agents, orchestrate(plan, bindings={"topic": "go"}))

    output = step["output"]
    assert (output["success"], model.started) == (True, ["a", "b"])
    assert model.received["a"].input == "On go"
    assert model.received["b"].input == '3 of {"v":3}'
    assert model.received["b"].data == {"n": 3, "all": [1, 2]}
    assert output["bindings"] == {
        "topic": "go",
        "deep": {"list": [1, 2]},
        "found": {"v": 3},
        "used": {"v": "done"},
    }
    assert [(one["id"], one["status"], one["output"]) for one in output["steps"]] == [
        ("find", "success", {"v": 3}),
        ("use", "success", {"v": "done"}),
    ]


def test_what_an_agent_says_is_never_read_as_a_template(orchestra: Run) -> None:
    said = "$0.output.output and {{ bindings.secret }} and {{ $0.output.exec_id }}"
    plan = {
        "bindings": {"secret": "s3", "raw": "{{ bindings.secret }}"},
        "steps": [
            agent_step("a", "a", result_key="k"),
            agent_step("b", "b", prompt="{{ result.k.v }}", **{"with": {"x": "{{ bindings.raw }}"}}, result_key="l"),
            agent_step("c", "c", prompt="{{ result.l.v }}"),
        ],
    }

    _, model, _ = orchestra({"a": {"ok": {"v": said}}, "b": {"ok": {"v": said}}, "c": OK}, orchestrate(plan))

    assert model.received["b"].input == said
    assert model.received["b"].data == {"x": "{{ bindings.secret }}"}
    assert model.received["c"].input == said


def test_every_execution_is_a_job_that_can_be_looked_up(orchestra: Run) -> None:
    plan = {"steps": [agent_step("one", "a"), group_step("two", [{"agent_id": "a"}, {"agent_id": "b"}])]}

    step, _, jobs = orchestra({"a": OK, "b": OK}, orchestrate(plan), also=below)

    one, two = step["output"]["steps"]
    named = [step["output"]["exec_id"], one["exec_id"], *(child["exec_id"] for child in two["children"])]
    assert [str(job["id"]) for job in jobs] == named
    assert [job["depth"] for job in jobs] == [0, 1, 1, 1], "an orchestration is no level of its own"
    assert [job["agent_name"] for job in jobs] == [None, "a", "a", "b"]
    assert {job["status"] for job in jobs} == {"completed"}
    totals = step["output"]["totals"]
    assert (totals["steps"], totals["agents"], totals["success"], totals["model_calls"]) == (2, 3, 3, 3)
    assert (totals["input_tokens"], totals["output_tokens"], totals["jobs"]) == (39, 9, 3)


def test_a_group_runs_as_many_agents_at_once_as_it_may(orchestra: Run) -> None:
    calls = [{"agent_id": "a", "result_key": f"k{n}"} for n in range(4)]
    plan = {"steps": [group_step("all", calls, max_concurrency=2, result_key="g")]}

    step, model, _ = orchestra({"a": {"ok": {"v": 1}, "meet": 2}}, orchestrate(plan))

    assert model.most == 2
    assert step["output"]["bindings"]["g"] == {f"k{n}": {"v": 1} for n in range(4)}


def test_of_first_success_the_fast_one_wins_and_the_slow_one_is_cut_off_and_paid_for(orchestra: Run) -> None:
    calls = [{"agent_id": "slow", "result_key": "s"}, {"agent_id": "fast", "result_key": "f"}]
    plan = {"steps": [group_step("race", calls, merge_strategy="first_success", result_key="won")]}
    agents = {"slow": {"hang": True}, "fast": {"ok": {"v": "first"}, "meet": 2}}

    step, model, jobs = orchestra(agents, orchestrate(plan), also=below)

    race = step["output"]["steps"][0]
    assert (race["status"], race["output"], step["output"]["success"]) == ("success", {"v": "first"}, True)
    assert [child["status"] for child in race["children"]] == ["skipped", "success"]
    assert step["output"]["bindings"] == {"f": {"v": "first"}, "won": {"v": "first"}}
    assert model.cut_off == ["slow"]
    slow = next(job for job in jobs if job["agent_name"] == "slow")
    assert (slow["status"], slow["model_calls"], slow["input_tokens"]) == ("cancelled", 1, 40)


def test_of_first_success_all_have_to_fail_for_the_group_to_fail(orchestra: Run) -> None:
    plan = {"steps": [group_step("race", [{"agent_id": "b"}] * 2, merge_strategy="first_success")]}

    step, _, _ = orchestra({"b": BOOM}, orchestrate(plan))

    race = step["output"]["steps"][0]
    assert (step["output"]["success"], race["status"]) == (False, "failed")
    assert [child["status"] for child in race["children"]] == ["failed", "failed"]


def test_best_effort_collects_what_succeeded_and_goes_on(orchestra: Run) -> None:
    calls = [{"agent_id": "a", "result_key": "ka"}, {"agent_id": "b", "result_key": "kb"}]
    plan = {
        "steps": [
            group_step("some", calls, merge_strategy="best_effort", result_key="g"),
            agent_step("next", "a", prompt="{{ result.g }} {{ result.kb }}"),
        ]
    }

    step, model, _ = orchestra({"a": OK, "b": BOOM}, orchestrate(plan))

    output = step["output"]
    assert [(one["id"], one["status"]) for one in output["steps"]] == [("some", "partial"), ("next", "success")]
    assert (output["success"], output["bindings"]["g"]) == (True, {"ka": {"v": 1}})
    assert [error["step_id"] for error in output["errors"]] == ["some[1]"]
    assert model.received["a"].input == '{"ka":{"v":1}} null'


def test_a_failure_cuts_its_group_off_and_what_follows_is_skipped(orchestra: Run) -> None:
    calls = [{"agent_id": "slow"}, {"agent_id": "b"}]
    plan = {"steps": [agent_step("first", "a"), group_step("two", calls), agent_step("third", "a")]}
    agents = {"a": OK, "slow": {"hang": True}, "b": {**BOOM, "meet": 1}}

    step, model, events = orchestra(agents, orchestrate(plan), also=told)

    output = step["output"]
    assert output["success"] is False
    assert [(one["id"], one["status"]) for one in output["steps"]] == [
        ("first", "success"),
        ("two", "failed"),
        ("third", "skipped"),
    ]
    children = output["steps"][1]["children"]
    assert [child["status"] for child in children] == ["skipped", "failed"]
    assert "boom" in children[1]["error"]["message"]
    assert (model.cut_off, model.started.count("a")) == (["slow"], 1)
    assert events[-1] == {
        "n": 6,
        "event": "step_failed",
        "source": "awaiting_results",
        "target": "failed",
        "aliases": ["awaiting_results", "failed"],
        "step_id": "two",
    }


def test_the_transitions_are_told_once_and_in_order(orchestra: Run) -> None:
    plan = {"steps": [agent_step("a", "a"), group_step("p", [{"agent_id": "a"}])]}
    counted: dict[str, Any] = {}

    async def also(harness: Harness, job: Any) -> Any:
        counted.update(harness.agent_services.counts)
        return await told(harness, job)

    _, _, events = orchestra({"a": OK}, orchestrate(plan), also=also)

    assert [(one["n"], one["event"], one.get("step_id", "")) for one in events] == [
        (0, "start_plan", ""),
        (1, "planner_finished", ""),
        (2, "dispatch_step", "a"),
        (3, "step_succeeded", "a"),
        (4, "planner_finished", "p"),
        (5, "dispatch_step", "p"),
        (6, "parallel_complete", "p"),
        (7, "parallel_complete", ""),
    ]
    assert counted["transition", "parallel_complete", "completed"] == 1


@pytest.mark.parametrize(
    ("behaviour", "event", "code"),
    [({"hang": True}, "timeout", "timeout"), ({"fault": "oops"}, "panic", "internal")],
)
def test_a_time_out_and_a_fault_fire_their_own_events(orchestra: Run, behaviour: Any, event: str, code: str) -> None:
    plan = {"steps": [agent_step("a", "a", timeout_ms=400)]}

    async def also(harness: Harness, job: Any) -> Any:
        return await told(harness, job)

    step, _, events = orchestra({"a": behaviour}, orchestrate(plan), also=also)

    assert events[-1]["event"] == event
    assert step["output"]["steps"][0]["error"]["code"] == code


@pytest.mark.parametrize("after", [291, 296], ids=["of an agent", "of the orchestration"])
def test_what_had_ended_is_kept_where_the_time_of_a_plan_ends(
    play: Callable[..., Any], database_url: str, after: int
) -> None:
    # Pins: steps of 300 s in a plan of 300 s ended with the plan, which failed, and no result of any was left.
    steps = [
        agent_step("a", "a", timeout_ms=300_000, result_key="found"),
        group_step("b", [{"agent_id": "a"}, {"agent_id": "slow", "timeout_ms": 300_000}, {"agent_id": "a"}]),
        agent_step("c", "a"),
    ]
    model = Orchestra(agents={"a": {"ok": {"v": 1}}, "slow": {"hang": True}})

    async def scenario(harness: Harness) -> Any:
        plan = orchestrate({"steps": steps}, max_parallel=2)
        running = asyncio.create_task(perform(harness, database_url, [document("a"), document("slow")], plan))
        await until(lambda: model.started.count("a") == 3 and "slow" in model.started)
        ended = "SELECT id FROM jobs WHERE agent_name = 'a' AND status = 'completed' AND id <> %s"
        async with asyncio.timeout(60):
            while len(await rows(harness, ended, UUID(int=0))) < 3:
                pass
        await stop_clock(harness.database, timedelta(seconds=after))
        job, steps_then = await running
        return job, steps_then[-1], await told(harness, job)

    job, step, events = play(scenario, model, agents=True)

    output = step["output"]
    assert (job["status"], step["status"], output["success"]) == ("completed", "succeeded", False)
    first, group, last = output["steps"]
    assert (first["status"], first["output"], output["bindings"]) == ("success", {"v": 1}, {"found": {"v": 1}})
    assert (group["status"], group["timed_out"], last["status"]) == ("partial", True, "skipped")
    done, slow, also_done = group["children"]
    assert (done["status"], also_done["status"]) == ("success", "success")
    assert (slow["status"], slow["timed_out"], slow["error"]["code"]) == ("failed", True, "timeout")
    assert slow["exec_id"]
    assert (events[-1]["event"], events[-1]["target"], events[-1]["step_id"]) == ("timeout", "failed", "b")


def test_errors_are_told_in_the_words_of_the_plan(orchestra: Run) -> None:
    # Pins: the error of a template spoke of `$0.output.output.nope`, which nobody had written.
    plan = {
        "steps": [
            agent_step("one", "a", result_key="k"),
            group_step("two", [{"agent_id": "a", "result_key": "x"}], result_key="g"),
            agent_step("three", "a", prompt="see {{ k.nope }} and {{ x.none }}"),
        ]
    }

    step, _, _ = orchestra({"a": OK}, orchestrate(plan))

    third = step["output"]["steps"][2]
    assert third["status"] == "failed"
    assert "result.k.nope" in third["error"]["message"]
    assert "$0" not in third["error"]["message"]


def test_the_transitions_of_a_refused_plan_are_events_of_the_job_that_asked_once(play: Callable[..., Any]) -> None:
    made = [one.to_json() for one in transitions_of([], is_valid=False)]

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("anything")
        store = PostgresOrchestrations(harness.database)
        told = [await store.journal_refusal(job_id, step, made) for step in (4, 4, 7)]
        query = "SELECT data FROM events WHERE job_id = %s AND kind = 'orchestration' ORDER BY sequence"
        return told, [row["data"] for row in await rows(harness, query, job_id)]

    told, events = play(scenario, Orchestra())

    assert told == [True, False, True]
    assert events == [{**one, "step": step} for step in (4, 7) for one in made]
    assert events[1]["target"] == "failed"


def test_whoever_tells_transitions_at_the_same_time_tells_each_once(play: Callable[..., Any]) -> None:
    steps = [StepProgress(name, StepType.AGENT, StepPhase.SUCCEEDED) for name in "abc"]
    transitions = [one.to_json() for one in transitions_of(steps, is_over=True)]

    async def scenario(harness: Harness) -> Any:
        job_id = await harness.submit("anything")
        store = PostgresOrchestrations(harness.database)
        told = await asyncio.gather(*(store.journal(job_id, transitions[:size]) for size in (3, 11, 7, 5, 11)))
        assert await store.look(job_id) is None, "it is no orchestration"
        query = "SELECT data FROM events WHERE job_id = %s AND kind = 'orchestration' ORDER BY sequence"
        return told, [row["data"] for row in await rows(harness, query, job_id)]

    told, events = play(scenario, Orchestra())

    assert events == transitions
    assert sorted(number for part in told for number in part) == list(range(len(transitions)))


def test_limits_above_the_cap_are_lowered_and_the_output_says_so(orchestra: Run) -> None:
    plan = {"steps": [group_step("p", [{"agent_id": "a"}] * 3, max_concurrency=3)]}

    step, model, jobs = orchestra(
        {"a": OK},
        orchestrate(plan, max_parallel=40, timeout_ms=600_000),
        limits=Limits(orchestrate_max_parallel=1),
        also=below,
    )

    output = step["output"]
    assert (output["success"], model.most) == (True, 1)
    told = [(one["path"], one["rule"]) for one in output["warnings"]]
    assert told == [
        ("max_parallel", "lowered"),
        ("timeout_ms", "lowered"),
        ("steps[0].parallel.max_concurrency", "lowered"),
    ]
    assert jobs[0]["output"]["warnings"] == output["warnings"]

"""What monitors hear of a worker: every stage and step, fused or not, in lists, to the very end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from uuid import UUID

import pytest

from planq.shared.broker.celery_config import create_celery
from tests.support.callers import Caller
from tests.support.monitor import RECEIVED, Monitor
from tests.support.stack import Stack
from tests.support.waiting import eventually

SHOWN = {"PLANQ_TASK_EVENTS": "true"}


def has_completed(caller: Caller, job_id: UUID) -> bool:
    return caller.status(job_id) == "completed"


@pytest.fixture
def monitor(broker_url: str) -> Iterator[Monitor]:
    app = create_celery(broker_url)
    listening = Monitor(app)
    yield listening
    listening.close()
    app.close()


def test_a_monitor_hears_of_every_stage_and_step_in_few_messages(
    make_stack: Callable[..., Stack], database_url: str, broker_url: str, monitor: Monitor
) -> None:
    calls = [{"tool_name": "calculate", "arguments": {"expression": "6*7"}} for _ in range(3)]
    with Caller(database_url, broker_url) as caller:
        make_stack(database_url, broker_url, env=SHOWN).run_worker("io")
        eventually(lambda: monitor.events, 60, what="the worker is heard of")
        jobs = [caller.submit("", {"calls": calls}) for _ in range(20)]
        for job in jobs:
            eventually(partial(has_completed, caller, job), 60, what="job completed")
            for attempt in ("plan.1", "r0.s0.1", "r0.s1.1", "r0.s2.1", "respond.2"):
                task_id = f"{job}.{attempt}"
                eventually(partial(monitor.knows, task_id), 60, what=task_id)
                heard = monitor.kinds(task_id)
                assert sorted(heard) == RECEIVED
                assert heard[0] == "task-received"
    clocks = [event["clock"] for event in monitor.events if event["type"].startswith("task-")]
    assert clocks == sorted(clocks)
    assert sum(monitor.lists) >= 300
    assert len(monitor.lists) < 100


def test_what_ends_while_a_worker_stops_is_heard_of(
    make_stack: Callable[..., Stack], database_url: str, broker_url: str, monitor: Monitor
) -> None:
    stack = make_stack(database_url, broker_url, env={**SHOWN, "PLANQ_TOOLS": "tests.support.tools"})
    with Caller(database_url, broker_url) as caller:
        worker = stack.run_worker("io")
        job = caller.submit("", {"calls": [{"tool_name": "test_hold", "arguments": {"seconds": 2.0}}]})
        eventually(lambda: "task-started" in monitor.kinds(f"{job}.r0.s0.1"), 60, what="the step runs")
        worker.terminate()
        eventually(lambda: "task-succeeded" in monitor.kinds(f"{job}.r0.s0.1"), 60, what="its end is told")
        assert worker.wait(60) == 0


def test_a_monitor_sees_which_tool_runs_and_what_made_it_ready(
    make_stack: Callable[..., Stack], database_url: str, broker_url: str, monitor: Monitor
) -> None:
    """Also of steps that share a message with others, or go on without one."""
    wide, few = 20, 4
    calls = [{"tool_name": "calculate", "arguments": {"expression": str(n)}} for n in range(wide)]
    outputs = [f"${n}.output" for n in range(wide)]  # all of them: what a join waits for goes before the rest
    calls.append({"tool_name": "json_query", "arguments": {"data": outputs, "expression": "[0]"}})
    with Caller(database_url, broker_url) as caller:
        make_stack(database_url, broker_url).run_worker("io", concurrency=few, env=SHOWN)
        eventually(lambda: monitor.events, 60, what="the worker is heard of")
        job = caller.submit("", {"calls": calls})
        eventually(partial(has_completed, caller, job), 60, what="job completed")
        for attempt in ("plan.1", "respond.2", *(f"r0.s{n}.1" for n in range(wide + 1))):
            eventually(partial(monitor.knows, f"{job}.{attempt}"), 60, what=attempt)
    tasks = {event["uuid"]: event for event in monitor.events if event["type"] == "task-received"}
    assert {task["root_id"] for task in tasks.values()} == {f"{job}.plan.1"}
    shared = [task for task in tasks.values() if task["name"] == "planq.step[calculate]"]
    assert shared, "more steps than slots"
    fan_out = [tasks[f"{job}.r0.s{n}.1"] for n in range(wide)]
    assert {task["name"] for task in fan_out} == {"planq.step[calculate]"}
    assert {task["parent_id"] for task in [*fan_out, *shared]} == {f"{job}.plan.1"}
    places = [task["kwargs"].partition(f" group={job}.plan.1.group")[2] for task in fan_out]
    assert sorted(places) == sorted(f"[{place}]" for place in range(wide))
    last = tasks[f"{job}.r0.s{wide}.1"]
    assert last["name"] == "planq.step[json_query]"
    assert last["parent_id"] in {task["uuid"] for task in fan_out}
    assert "group=" not in last["kwargs"]
    stages = [tasks[f"{job}.{stage}"] for stage in ("plan.1", "respond.2")]
    assert [task["name"] for task in stages] == ["planq.plan", "planq.respond"]
    assert [task["parent_id"] for task in stages] == [None, f"{job}.r0.s{wide}.1"]

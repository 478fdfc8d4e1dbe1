"""Budgets over deaths: nothing that a dead worker had reserved is lost to its tree, and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Json

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.kernel.wakes import Wake
from tests.faults.conftest import Play, Stage
from tests.faults.scene import Scene
from tests.support.tiers import rare

EXACTLY = {
    "store.reserve:after@2": 3,
    "responder.respond:after": 3,
    "store.record_calls:before": 3,
    "store.record_calls:after": 4,
}
"""Where the worker dies in a step that plans, and the calls that are recorded of the tree in the end: one that plans,
one of the agent, one that answers. A call that was not recorded is lost with the dead worker; one that was counts,
beside the one that its successor makes."""


def submit(scene: Scene, tool: str, arguments: Mapping[str, Any], calls: int) -> UUID:
    """Store an agent that answers in one call, and a job whose tree may make so many model calls."""
    document = {"name": "helper", "description": "You help."}
    scene.read(
        "INSERT INTO agents (tenant_id, name, version, document, digest) VALUES ('default', 'helper', 1, %s, '')",
        Json(document),
    )
    job_id = new_id()
    plan = {"calls": [{"tool_name": tool, "arguments": arguments}]}
    submission = Submission(
        job_id, "default", "", Strategy.PLAN, "offline", Limits(), plan=plan, budget={"max_model_calls": calls}
    )
    scene.caller.do(scene.caller.requests.submit(submission))
    scene.caller.publisher.publish_soon([Wake.plan(job_id)])
    return job_id


def recorded(scene: Scene) -> int:
    """Return how many calls are recorded, which is what the jobs have counted."""
    (row,) = scene.read("SELECT sum(model_calls) AS counted, (SELECT count(*) FROM model_calls) AS n FROM jobs")
    assert row["counted"] == row["n"]
    return int(row["n"])


def dies_while_a_step_plans(point: str, calls: int, stage: Stage) -> None:
    with stage() as scene:
        job_id = submit(scene, "cp__agent_orchestrate", {"prompt": "Ask helper to say hello."}, calls)
        scene.died_at(point)
        scene.worker()
        job, (step,) = scene.ends(job_id)
        assert (job["status"], step["status"]) == ("completed", "succeeded"), step["error"]
        assert recorded(scene) == calls
        scene.sound()


def dies_with_a_share_that_others_wait_for(stage: Stage) -> None:
    """Of four agents two may call a model, and both have reserved their calls when their worker dies."""
    with stage() as scene:
        agents = [{"agent_id": "helper", "prompt": f"Say {number}."} for number in range(4)]
        job_id = submit(scene, "cp__call_agents", {"agents": agents}, 2)
        scene.died_at("store.reserve:after@3")
        scene.worker()
        scene.worker()
        job, (step,) = scene.ends(job_id)
        assert (job["error"]["code"], step["status"]) == ("budget_exceeded", "succeeded"), (
            "it has nothing left itself"
        )
        children = scene.read("SELECT status, error->>'code' AS code, model_calls FROM jobs WHERE id <> %s", job_id)
        assert len(children) == 4
        assert recorded(scene) == 2
        assert sum(child["status"] == "completed" for child in children) == 2
        assert {child["code"] for child in children if child["status"] != "completed"} == {"budget_exceeded"}
        scene.sound()


PLAYS: list[tuple[str, Play]] = [
    *((point, partial(dies_while_a_step_plans, point, calls)) for point, calls in EXACTLY.items()),
    ("a share", dies_with_a_share_that_others_wait_for),
]
RARE = ("responder.respond:after", "store.record_calls:before")
"""Between the two that are left a call is lost in the same way."""


@pytest.mark.parametrize(
    "play", [rare(play, id=play[0]) if play[0] in RARE else pytest.param(play, id=play[0]) for play in PLAYS]
)
def test_a_tree_makes_exactly_the_calls_of_its_budget_whoever_dies(
    play: tuple[str, Play], plays: dict[str, Future[None]]
) -> None:
    plays[play[0]].result()

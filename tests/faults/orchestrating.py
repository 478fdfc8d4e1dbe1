"""Agents that orchestrate agents, on workers that die: the model is `offline`, told by each action what to call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg.types.json import Json

from tests.faults.scene import PATIENCE, Scene
from tests.support.orchestras import agent_step, group_step
from tests.support.waiting import eventually

ORCHESTRATE = "cp__agent_orchestrate"


def agent(scene: Scene, name: str, tool: str, arguments: Mapping[str, Any]) -> None:
    """Store an agent whose action `go` calls a tool."""
    prompt = f"call {tool} with {json.dumps(arguments)}"
    document = {
        "name": name,
        "description": f"I am {name}.",
        "tools": [{"name": tool}],
        "actions": {"go": {"prompt": prompt}},
    }
    scene.read(
        "INSERT INTO agents (tenant_id, name, version, document, digest) VALUES ('default', %s, 1, %s, '')",
        name,
        Json(document),
    )


def group(*names: str) -> dict[str, Any]:
    """A plan of one group of agents."""
    calls = [
        {"agent_id": name, "action_id": "go", "prompt": "", "result_key": f"k{n}"} for n, name in enumerate(names)
    ]
    return {"steps": [group_step("all", calls, result_key="g")]}


def transitions(scene: Scene) -> Mapping[UUID, Sequence[int]]:
    """Return the numbers of the transitions that each orchestration has told, in the order of telling."""
    told: dict[UUID, list[int]] = {}
    for row in scene.read("SELECT job_id, data FROM events WHERE kind = 'orchestration' ORDER BY sequence"):
        told.setdefault(row["job_id"], []).append(row["data"]["n"])
    return told


def orchestrated(scene: Scene, point: str) -> None:
    """Recipe: a worker dies at a point while it carries out two agents, one after the other."""
    agent(scene, "note", "fault_note", {"text": "a"})
    steps = [agent_step(name, "note", action_id="go", prompt="") for name in ("one", "two")]
    job_id = scene.submit((ORCHESTRATE, {"plan": {"steps": steps}}))
    scene.died_at(point)
    scene.worker()
    _, (step,) = scene.ends(job_id)
    assert step["output"]["success"] is True, step
    assert [entry["status"] for entry in step["output"]["steps"]] == ["success", "success"]
    ((told,),) = [list(transitions(scene).values())]
    assert told == list(range(8)), "each transition is told once, in order"


def all_workers_are_killed_in_the_middle_of_three_levels(scene: Scene) -> None:
    """Groups of four, nested three deep, a leaf of each level still at work: these run again, and nothing else."""
    agent(scene, "note", "fault_note", {"text": "a"})
    agent(scene, "hold", "fault_hold", {"until": "go"})
    agent(scene, "two", ORCHESTRATE, {"plan": group("note", "note", "note", "hold")})
    agent(scene, "one", ORCHESTRATE, {"plan": group("two", "note", "note", "hold")})
    job_id = scene.submit((ORCHESTRATE, {"plan": group("one", "note", "note", "hold")}))
    names = [scene.worker(), scene.worker()]
    scene.eventually_running("fault_hold", 3)

    def rest_is_done() -> bool:
        rows = scene.read("SELECT 1 FROM jobs WHERE agent_name = 'note' AND status = 'completed'")
        return len(rows) == 7

    eventually(rest_is_done, PATIENCE, what="every other leaf has ended")
    finished = "SELECT job_id, round, index, attempt, finished_at FROM steps WHERE status = 'succeeded'"
    before = {tuple(row.values()) for row in scene.read(finished)}
    for name in names:
        scene.stack.kill(name)
    (scene.folder / "go").touch()
    scene.worker()

    job, (step,) = scene.ends(job_id)

    assert (job["status"], step["output"]["success"]) == ("completed", True), step
    (top,) = step["output"]["steps"]
    assert [child["status"] for child in top["children"]] == ["success"] * 4
    jobs = scene.read(
        "SELECT status, depth, agent_name FROM jobs WHERE root_job_id = %s AND id <> %s", job_id, job_id
    )
    assert [row["status"] for row in jobs] == ["completed"] * 15, "no agent was asked twice"
    assert max(row["depth"] for row in jobs) == 3
    assert before <= {tuple(row.values()) for row in scene.read(finished)}, "nothing that had finished ran again"
    assert all(told == list(range(len(told))) for told in transitions(scene).values())
    scene.sound()

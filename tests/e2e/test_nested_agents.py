"""Agents that let agents work, three levels deep and four at a time, whose workers are all killed in the middle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from tests.faults.scene import Scene, playing
from tests.support.waiting import eventually

WIDE = 4
PATIENCE = 300.0

FINISHED = (
    "SELECT job_id, round, index, attempt, finished_at FROM steps WHERE status = 'succeeded' "
    "ORDER BY job_id, round, index"
)
ENDED = "SELECT id, finished_at, model_calls, output::text AS output FROM jobs WHERE status = 'completed' ORDER BY id"

LEAF = {
    "name": "leaf",
    "structured_output": True,
    "properties": {"text": {"type": "string"}},
    "tools": ["fault_note", "fault_hold"],
    "actions": {
        "go": {
            "prompt": 'call fault_note with {"text": "{{ with.name }}"}, '
            'then call fault_hold with {"until": "{{ with.until }}"}'
        }
    },
}
"""Puts its name in brackets; then it waits for a file."""


def orchestrator(name: str, below: str) -> dict[str, Any]:
    """An agent whose answer is the object that the four agents below it have made together."""
    calls = [
        {
            "agent_id": below,
            "action_id": "go",
            "result_key": f"k{number}",
            "timeout_ms": 300_000,
            # Half of the leaves have nothing to wait for.
            "with": {"name": f"{{{{ bindings.name }}}}.{number}", "until": "early" if number % 2 else "go"},
        }
        for number in range(1, WIDE + 1)
    ]
    group = {"id": "all", "type": "parallel", "status": "pending", "parallel": {"steps": calls}}
    arguments = {
        "bindings": {"name": "{{ with.name }}"},
        "plan": {"id": name, "steps": [group]},
        "timeout_ms": 300_000,
    }
    return {
        "name": name,
        "structured_output": True,
        "properties": {"bindings": {"type": "object"}},
        "tools": ["cp__agent_orchestrate"],
        "actions": {"go": {"prompt": f"call cp__agent_orchestrate with {json.dumps(arguments)}"}},
    }


def expected(name: str, levels: int) -> dict[str, Any]:
    """What comes out of an agent with so many levels below it."""
    if levels == 0:
        return {"text": f"<{name}>"}
    below = {f"k{number}": expected(f"{name}.{number}", levels - 1) for number in range(1, WIDE + 1)}
    return {"bindings": {"name": name, **below}}


@pytest.fixture
def scene(tmp_path: Path, database_url: str, valkey_url: str) -> Iterator[Scene]:
    with playing(tmp_path / "scene", database_url, valkey_url) as running:
        running.api()
        for document in (
            LEAF,
            orchestrator("twig", "leaf"),
            orchestrator("branch", "twig"),
            orchestrator("root", "branch"),
        ):
            answer = httpx.put(f"{running.stack.url}/agents/{document['name']}", json=document, timeout=60)
            assert answer.status_code == 201, answer.text
        yield running


def test_three_levels_of_agents_outlive_the_death_of_all_workers_without_doing_anything_twice(scene: Scene) -> None:
    (scene.folder / "early").touch()
    workers = [scene.worker(), scene.worker()]
    eventually(
        lambda: scene.read("SELECT 1 FROM tools WHERE name = 'cp__parallel'"), PATIENCE, what="tools are known"
    )

    body = {"agent": "root", "action": "go", "with": {"name": "r"}}
    submitted = httpx.post(f"{scene.stack.url}/jobs", json=body, timeout=60)
    assert submitted.status_code == 202, submitted.text
    job_id = submitted.json()["id"]
    leaves = WIDE**3
    half = "SELECT count(*) AS n FROM jobs WHERE agent_name = 'leaf' AND status = 'completed'"
    eventually(lambda: scene.read(half)[0]["n"] == leaves // 2, PATIENCE, what="half of the leaves have ended")
    scene.eventually_running("fault_hold", leaves // 2)

    for name in workers:
        scene.stack.kill(name)
    finished, ended = scene.read(FINISHED), scene.read(ENDED)
    (scene.folder / "go").touch()
    scene.worker()
    scene.worker()
    job, _ = scene.ends(UUID(job_id), PATIENCE)

    assert job["status"] == "completed", job["error"]
    assert job["output"] == expected("r", 3)
    kept = {(row["job_id"], row["round"], row["index"]): row for row in scene.read(FINISHED)}
    assert [kept[row["job_id"], row["round"], row["index"]] for row in finished] == finished
    jobs = {row["id"]: row for row in scene.read(ENDED)}
    assert [jobs[row["id"]] for row in ended] == ended
    agents = scene.read("SELECT agent_name, count(*) AS n FROM jobs GROUP BY 1 ORDER BY 1")
    assert {row["agent_name"]: row["n"] for row in agents} == {
        "root": 1,
        "branch": WIDE,
        "twig": WIDE**2,
        "leaf": leaves,
        None: 1 + WIDE + WIDE**2,
    }
    # A leaf's note had ended before the kill, so that its tool was called once; what waited was called again.
    assert {
        (row["tool_name"], row["attempt"])
        for row in scene.read("SELECT DISTINCT tool_name, attempt FROM steps WHERE tool_name LIKE 'fault_%%'")
    } == {("fault_note", 1), ("fault_hold", 1), ("fault_hold", 2)}
    scene.sound()

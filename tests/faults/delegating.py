"""A tool of the fault tests that lets child jobs do its work, and the family of jobs that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.children import ChildOutcome, ChildRequest, Delegated
from planq.shared.kernel.states import Effect, JoinPolicy, StepKind
from tests.faults.scene import PATIENCE, Scene
from tests.faults.tools import OUTPUT, entered
from tests.support.waiting import eventually

Call = tuple[str, Mapping[str, Any]]


class FaultDelegate:
    """Makes a child job of each plan that its argument lists; its text tells how these ended."""

    definition = ToolDefinition(
        name="fault_delegate",
        input_schema={"type": "object"},
        output_schema=OUTPUT,
        effect=Effect.IDEMPOTENT,
        retries=0,
        kind=StepKind.PARALLEL,
    )

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Delegate."""
        entered(context)
        children = [ChildRequest(None, "", 60.0, plan=plan) for plan in arguments["plans"]]
        return Delegated(children, JoinPolicy(arguments["until"]), arguments["most"])

    async def gather(
        self, arguments: dict[str, Any], children: Sequence[ChildOutcome], note: Any, context: ToolContext
    ) -> Any:
        """Tell how the children ended."""
        return {"text": "+".join(str(child.status) for child in children)}


delegate = FaultDelegate()


def plan(*calls: Call) -> dict[str, Any]:
    """A plan of calls."""
    return {"calls": [{"tool_name": name, "arguments": dict(arguments)} for name, arguments in calls]}


def delegated(*plans: Mapping[str, Any], most: int = 2, until: str = "all") -> Call:
    """The call that lets child jobs carry out plans."""
    return "fault_delegate", {"plans": list(plans), "most": most, "until": until}


def family(*leaf: Call) -> list[Call]:
    """A chain around a delegation to three jobs, two at once, one of which delegates again; `leaf` ends each."""
    chain = plan(("fault_note", {"text": "a"}), ("fault_note", {"text": "$0.output.text"}), *leaf)
    inner = plan(delegated(chain, chain), *leaf)
    return [
        ("fault_note", {"text": "b"}),
        delegated(chain, inner, chain),
        ("fault_note", {"text": "$1.output.text"}),
    ]


def comes_out_right(scene: Scene, job_id: UUID) -> None:
    """See that a family has ended as it should: nobody was made twice, and nothing that had finished ran again."""
    steps = scene.completes(job_id, "<completed+completed+completed>")
    assert steps[1]["attempt"] >= 2
    jobs = scene.read(
        "WITH RECURSIVE below AS (SELECT id FROM jobs WHERE id = %s UNION ALL "
        "SELECT c.id FROM jobs c JOIN below b ON c.parent_job_id = b.id) "
        "SELECT id, status FROM jobs WHERE id IN (SELECT id FROM below) AND id <> %s",
        job_id,
        job_id,
    )
    assert [row["status"] for row in jobs] == ["completed"] * 5
    ran = scene.ran()
    for row in jobs:
        _, steps = scene.job(row["id"])
        assert {step["status"] for step in steps} == {"succeeded"}
        assert all(ran[f"{row['id']}/{s['index']}"] <= s["attempt"] for s in steps)


def kin(scene: Scene, point: str) -> None:
    """Recipe: a worker dies at a point while a family of jobs is carried out."""
    job_id = scene.submit(*family())
    scene.died_at(point)
    scene.worker()
    comes_out_right(scene, job_id)


def untold(scene: Scene, point: str) -> None:
    """Recipe: a worker died before it told a parent, and the one whose sweeper does so dies."""
    job_id = scene.submit(*family())
    scene.died_at("store.serve_end:before")
    scene.died_at(point)
    scene.worker()
    comes_out_right(scene, job_id)


def the_workers_of_a_family_are_killed_in_the_middle(scene: Scene) -> None:
    """All of them at once, while leaves of every level run: they run again, nothing else does."""
    job_id = scene.submit(*family(("fault_hold", {"until": "go"})))
    names = [scene.worker(), scene.worker()]
    scene.eventually_running("fault_hold", 3)
    notes = "SELECT 1 FROM steps WHERE tool_name = 'fault_note' AND status IN ('ready', 'running')"
    eventually(lambda: not scene.read(notes), PATIENCE, what="what does not wait has ended")
    for name in names:
        scene.stack.kill(name)
    (scene.folder / "go").touch()
    scene.worker()
    comes_out_right(scene, job_id)
    again = scene.read("SELECT tool_name, max(attempt) AS most FROM steps GROUP BY tool_name")
    assert {row["tool_name"]: row["most"] for row in again}["fault_note"] == 1
    scene.sound()

"""Resources of real workers: opened once in each process that carries out calls, closed when it drains."""

from __future__ import annotations

import signal

from planq.deploy.local.child import has_exited
from tests.faults.conftest import Stage
from tests.faults.scene import PATIENCE, SETTINGS
from tests.support.waiting import eventually

BOTH = f"{SETTINGS['PLANQ_TOOLS']},tests.faults.resources"


def test_a_resource_lives_as_long_as_the_process_that_calls_its_tools(stage: Stage) -> None:
    with stage() as scene:
        names = [scene.worker(PLANQ_TOOLS=BOTH), scene.worker("cpu", PLANQ_TOOLS=BOTH)]
        published = "SELECT 1 FROM tools WHERE name = 'at_bench'"
        eventually(lambda: scene.read(published), PATIENCE, what="the tools are published")
        job_id = scene.submit(*(("at_desk", {}), ("at_bench", {})) * 2)
        eventually(lambda: scene.has_ended(job_id), PATIENCE, what="the job ends")
        _, steps = scene.job(job_id)
        said = {step["output"]["text"] for step in steps}
        assert len(said) == 2, "of each pool one process, with one of its own"
        for name in names:
            scene.signal(name, signal.SIGTERM)
        for name in names:
            eventually(lambda name=name: has_exited(scene.stack.processes[name]), PATIENCE, what=f"{name} has gone")
        told = (scene.folder / "resources").read_text().splitlines()
        pids = dict(text.split() for text in said)
        assert sorted(told) == sorted(
            f"{kind.lower()} {what} {pid}" for kind, pid in pids.items() for what in ("opened", "closed")
        )

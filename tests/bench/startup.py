"""How long a warm `planq up` takes to be healthy, and how much memory all its processes hold when idle."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import psutil

from tests.bench.context import Context
from tests.bench.figures import Figure
from tests.support.ports import free_ports
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
WARM_START_LIMIT_SECONDS = 6.0
IDLE_MEMORY_LIMIT_MB = 800.0
START_PATIENCE_SECONDS = 180.0
SETTLED_CHANGE = 0.005
MIB = 1024 * 1024


def measure(context: Context) -> list[Figure]:
    """Start planq on new data, stop it, start it again, and measure the second start."""
    with tempfile.TemporaryDirectory(prefix="planq-bench-") as folder:
        with running(Path(folder)) as (_, cold):
            pass
        with running(Path(folder)) as (process, warm):
            memory = idle_memory(process)
    return [
        Figure("cold start to healthy", cold, "s"),
        Figure("warm start to healthy", warm, "s", WARM_START_LIMIT_SECONDS),
        Figure("idle memory of all processes (PSS)", memory / MIB, "MB", IDLE_MEMORY_LIMIT_MB),
    ]


@contextmanager
def running(folder: Path, *options: str) -> Iterator[tuple[psutil.Popen, float]]:
    """Run `planq up` on `folder`; yield the process and the seconds until it said that it is healthy.

    What it prints stands in `output.txt` there.
    """
    port, flower_port = free_ports(2)
    output = folder / "output.txt"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PLANQ_")}
    for name in ("DATABASE_URL", "BROKER_URL", "REDIS_URL"):
        env.pop(name, None)
    ports = ["--port", str(port), "--flower-port", str(flower_port)]
    command = [sys.executable, "-m", "planq.deploy.cli.main", "up", *ports, "--data", str(folder / "data"), *options]
    begun = monotonic()
    with output.open("wb") as out:
        process = psutil.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)
    try:

        def is_healthy() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"planq up ended while it was starting:\n{output.read_text()}")
            return "healthy in" in output.read_text()

        eventually(is_healthy, START_PATIENCE_SECONDS, every=0.01)
        yield process, monotonic() - begun
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def idle_memory(process: psutil.Popen) -> int:
    """Return the bytes of a process and all below it once they have stopped changing.

    Shared pages count once: each process holds its proportional share (PSS; proc(5), smaps_rollup).
    """
    samples: list[int] = []

    def has_settled() -> bool:
        family = [process, *process.children(recursive=True)]
        samples.append(sum(one.memory_full_info().pss for one in family))
        recent = samples[-4:]
        return len(recent) == 4 and max(recent) - min(recent) <= SETTLED_CHANGE * max(recent)

    eventually(has_settled, 60, every=1.0)
    return samples[-1]

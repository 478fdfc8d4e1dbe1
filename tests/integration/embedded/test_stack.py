"""The stack that end-to-end tests stand on: real processes that become ready, answer, and can be killed."""

from __future__ import annotations

import httpx
import psutil

from tests.support.living import is_alive
from tests.support.stack import Stack


def test_it_is_ready_and_a_killed_worker_takes_its_children_along(stack: Stack) -> None:
    assert httpx.get(f"{stack.url}/readyz").status_code == httpx.codes.OK
    worker = psutil.Process(stack.processes["cpu-1"].pid)
    family = [worker, *worker.children(recursive=True)]

    stack.kill("cpu-1")

    _, running = psutil.wait_procs(family, timeout=60)
    assert list(filter(is_alive, running)) == []
    assert httpx.get(f"{stack.url}/healthz").status_code == httpx.codes.OK

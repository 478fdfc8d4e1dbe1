"""The asyncio pool: a process whose loop has ended must not stay behind."""

from __future__ import annotations

import subprocess
import sys

_POOL_WITH_A_BROKEN_LOOP = """
import threading
from types import SimpleNamespace
from worker.pool import AsyncioPool

class Lane:
    async def open(self):
        import asyncio
        def interrupt():
            raise KeyboardInterrupt
        asyncio.get_running_loop().call_soon(interrupt)

app = SimpleNamespace(conf=SimpleNamespace(accept_content=["json"]), planq_lane=Lane())
AsyncioPool(app=app).on_start()
threading.Event().wait(30)
"""


def test_a_process_whose_loop_has_ended_ends_and_says_so() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _POOL_WITH_A_BROKEN_LOOP], capture_output=True, text=True, timeout=25, check=False
    )

    assert ended.returncode == 70, ended.stderr
    assert "loop_ended" in ended.stderr

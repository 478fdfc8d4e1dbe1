"""malloc's arenas are bounded unless the operator says otherwise; the collector passes over what was loaded."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
from planq.shared.platform.process_memory import bound_arenas
print(bound_arenas(), flush=True)
barrier = threading.Barrier(12)
def work():
    kept = [bytearray(2000) for _ in range(2000)]
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(11)]
for thread in threads: thread.start()
work()
libc = ctypes.CDLL(None)
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas to bound")
def test_threads_share_two_arenas_unless_the_operator_says_otherwise() -> None:
    def run(**env: str) -> tuple[bool, int]:
        clean = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=clean | env, capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout.startswith("True"), len(re.findall("<heap nr=", done.stdout))

    assert run() == (True, 2)
    is_bounded, arenas = run(MALLOC_ARENA_MAX="4")
    assert not is_bounded
    assert arenas > 2


def test_the_collector_passes_over_what_was_loaded() -> None:
    program = """
import gc
from planq.shared.platform.process_memory import settle_heap
settle_heap()
print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["True", "True"]

"""How a peer's process is told what to do: a line of JSON in, a line of JSON out, until its input ends.

    {"workload": "B1", "size": 1, "times": 30}   ->   {"seconds": [0.0123, …]}
    anything that fails                          ->   {"error": "…"}

The workloads: `B1`, `B1b` and `B1r` one job of five steps; `B2` and `B2r` `size` such jobs at once; `B3` `size` steps
of 50 ms beside one another and a join over them; `B4` and `B4r` a chain of `size` steps; `B14` an agent whose model
calls one tool in each of `size` turns and then answers; `message`, where there is one, a step alone. Only the
standard library is used: this runs where planq is not installed.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from time import perf_counter

STEPS = 5
"""Of a job of B1 and B2: planq plans, runs three tools and responds."""

WAIT_SECONDS = 0.05

Work = Callable[[int], object]
"""Does a workload of one size; returns when its result is there."""


def orders(one: Work, many: Work, long: Work) -> dict[str, Work]:
    """Return what a peer does for the workloads that differ only for planq, which knows the effect of a tool."""
    return {"B1": one, "B1b": one, "B1r": one, "B2": many, "B2r": many, "B4": long, "B4r": long}


def timed(work: Work, size: int, times: int) -> list[float]:
    """Return the seconds of each of `times` runs."""
    seconds = []
    for _ in range(times):
        begun = perf_counter()
        work(size)
        seconds.append(perf_counter() - begun)
    return seconds


def serve(workloads: Mapping[str, Work]) -> None:
    """Follow orders from standard input until it ends; the first line out says that this peer is ready."""
    _say({"ready": sorted(workloads)})
    for line in sys.stdin:
        order = json.loads(line)
        try:
            _say({"seconds": timed(workloads[order["workload"]], order["size"], order["times"])})
        except Exception as error:
            traceback.print_exc()
            _say({"error": f"{type(error).__name__}: {error}"})


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)  # noqa: T201 - this is the protocol


def expect(found: object, expected: object) -> None:
    """Raise `RuntimeError` unless the work had the result that it must have."""
    if found != expected:
        raise RuntimeError(f"expected {expected!r}, found {found!r}")

"""Which tests `make test` leaves to `.ci/run` (`--long`), chosen from what a whole run measured.

    make test PYTEST_ARGS="--long --durations=0 --durations-min=0.05 -vv" > LOG        # --whole counts examples too
    python -m tests.support.long_tests LOG

write `tests/data/long_tests.txt`. The longest tests go first, until the rest fits; each file keeps its shortest test
unless that is a long one too, so that `make test` has something of nearly every subject. A test that nobody has
measured yet runs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).parents[1] / "data/long_tests.txt"
BUDGET = 4 * 60 * 4.2
"""Maximum seconds of tests that the rest may take: four minutes at 4.2 of these a second on two cores, in addition to
the collection. They were measured on 2026-11-30 on a machine with other work, where all took 5,805 of them in 25
minutes. The bound of `make test` is seven minutes."""
LONG_SECONDS = 40.0
"""What the shortest test of a file may take and still be kept."""
_PHASE = re.compile(r"([0-9.]+)s (?:call|setup|teardown) +(tests/.*)")


def measured(lines: Iterable[str]) -> dict[str, float]:
    """Return the seconds that each test took, by its id, from what `--durations=0 -vv` printed."""
    seconds: dict[str, float] = defaultdict(float)
    for line in lines:
        if phase := _PHASE.fullmatch(line.strip()):
            seconds[phase[2]] += float(phase[1])
    return dict(seconds)


def candidates() -> set[str]:
    """Return the ids of all tests but those that only a whole run runs anyway."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--long"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {line for line in printed.splitlines() if "::" in line}


def chosen(seconds: Mapping[str, float], budget: float) -> list[str]:
    """Return the ids of the tests that are left out, sorted, so that the others take at most `budget` seconds.

    They take more only where the shortest tests of the files already do.
    """
    shortest: dict[str, str] = {}
    for test in sorted(seconds, key=lambda one: (seconds[one], one)):
        shortest.setdefault(test.partition("::")[0], test)
    kept = {test for test in shortest.values() if seconds[test] <= LONG_SECONDS}
    left = sum(seconds.values())
    out = []
    for test in sorted(set(seconds) - kept, key=lambda one: (-seconds[one], one)):
        if left <= budget:
            break
        left -= seconds[test]
        out.append(test)
    return sorted(out)


@cache
def long_tests() -> frozenset[str]:
    """Return the ids of the tests that are left out."""
    return frozenset(FILE.read_text("utf-8").splitlines())


if __name__ == "__main__":
    took = measured(Path(sys.argv[1]).read_text("utf-8", errors="replace").splitlines())
    here = candidates()
    left_out = chosen({test: seconds for test, seconds in took.items() if test in here}, BUDGET)
    FILE.write_text("".join(f"{test}\n" for test in left_out), "utf-8")

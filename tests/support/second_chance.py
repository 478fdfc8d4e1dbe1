"""`python -m tests.support.second_chance ARGUMENTS`: runs pytest, and what failed once more, by itself.

A test that fails beside thousands of others on a shared machine may fail for want of a core. What fails again fails
the run; what passes then is named by the first run, for it is a defect all the same: of the test, or of planq.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.support.pinned_env import ROOT


def passes(python: str, arguments: Sequence[str]) -> bool:
    """Run tests with a Python; return whether each passed, the second time at the latest."""
    command = [python, "-m", "pytest", *arguments]
    ended = subprocess.run([*command, "-n", "auto"], cwd=ROOT, check=False).returncode
    if ended == pytest.ExitCode.TESTS_FAILED:
        say("What failed runs once more, alone")
        again = [*command, "-n", "0", "--last-failed", "--last-failed-no-failures=none"]
        ended = subprocess.run(again, cwd=ROOT, check=False).returncode
        if ended == pytest.ExitCode.OK:
            say("What failed beside others passed alone; the first run's output says what it was")
    return ended == pytest.ExitCode.OK


def say(line: str) -> None:
    """Write a line at once, before what the next process writes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    # `timeout` ends this process alone, and the tests must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(0 if passes(sys.executable, sys.argv[1:]) else 1)

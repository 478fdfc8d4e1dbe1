"""A minute of chaos and a rolling restart, as a part of the tests; `make chaos` runs for as long as one likes.

It runs as a process of its own, as `make chaos` does, beside other tests. How soon attempts recover depends on them
too, so `make chaos` alone judges that, on a quiet machine.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from planq.deploy.local.child import reap, spawn, stop, wait_ended
from planq.deploy.local.folder import last_lines
from tests.chaos.schedule import SHORT_SEED

ROOT = Path(__file__).parents[2]
SECONDS = 60
LEASE_SECONDS = 4.0
ROLLING_SECONDS = 10
PATIENCE_SECONDS = 900.0

CLEAN = {
    "lost": [],
    "stuck": [],
    "doubled": 0,
    "wrong": [],
    "wrong_talks": [],
    "wrong_batches": [],
    "wrong_neighbours": [],
    "refused": [],
    "duplicate_unsafe_effects": [],
    "repeated_finished_steps": [],
    "started_while_paused": [],
    "unrecorded_model_calls": [],
    "broken_invariants": [],
    "unrecovered": [],
}


def chaos(report: Path, log: Path, *arguments: str) -> dict[str, Any]:
    """Run `python -m tests.chaos` to its end and return its report."""
    argv = [sys.executable, "-m", "tests.chaos", "--report", str(report), *arguments]
    with log.open("wb") as out:
        process = spawn(argv, log=out, cwd=ROOT)
    try:
        assert wait_ended(process, PATIENCE_SECONDS), f"still running:\n{last_lines(log, 60)}"
        reap(process)
    finally:
        stop(process, (signal.SIGTERM, 30.0))
    assert report.exists(), f"no report:\n{last_lines(log, 60)}"
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.whole
@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_nothing_is_lost_wrong_or_done_twice_while_everything_is_killed_and_restarted(tmp_path: Path) -> None:
    log = tmp_path / "chaos.log"

    found = chaos(
        tmp_path / "report.json",
        log,
        *("--seconds", str(SECONDS), "--lease", str(LEASE_SECONDS), "--seed", str(SHORT_SEED)),
        *("--rolling", "--rolling-seconds", str(ROLLING_SECONDS)),
    )

    faults, rolling = found["phases"]
    told = log.read_text()
    for phase in (faults, rolling):
        found_wrong = {name: phase[name] for name in CLEAN if phase[name] != CLEAN[name]}
        assert not found_wrong, f"{found_wrong}\n{told}"
        assert phase["jobs"] > 0
        assert phase["messages"] > 0
        assert phase["batch_lines"] > 0
    assert set(faults["faults"].values()) <= {1, 2}, "each kind of fault was dealt"
    assert min(faults["faults"].values()) > 0
    assert rolling["outcome_unknown"] == 0, told
    # Whoever ended such a process, a guard or a fault that was sooner: a job that it holds for ever would be stuck.
    assert faults["held"] > 0, told
    assert faults["neighbours"] > 0
    assert found["is_good"], told
    # What a fault strikes depends on the machine: on a slow one most of them find workers idle.
    assert faults["recovery"]["count"] + faults["given_back"] > 0, told

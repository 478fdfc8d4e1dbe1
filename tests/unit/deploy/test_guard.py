"""The guard over a small process with a loop: no servers. `tests/faults/test_freezes.py` has workers and the API."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from planq.deploy.local import guard
from planq.deploy.local.child import has_exited, reap, spawn
from planq.deploy.local.guard import LoopGuard, WatchedLoop, _Times, credited
from planq.shared.platform import beats
from planq.shared.platform.beats import Report
from tests.support import beating
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a guard needs to know what only Linux tells")

ROOT = Path(__file__).parents[3]
LIMIT = 1.0
PATIENCE = 60.0


class Guarded:
    """A guard and what it guards, with the files by which that is told what to do."""

    def __init__(self, folder: Path, limit: float = LIMIT, log_format: str = "json") -> None:
        self.folder = folder
        self._log = folder / "log"
        env = {**os.environ, "PLANQ_LOG_FORMAT": log_format}
        env["PYTHONPATH"] = str(ROOT)  # what a guard starts looks into no present folder
        command = [sys.executable, "-m", "planq.deploy.local.guard", "io", "-m", "tests.support.beating"]
        with self._log.open("ab") as log:
            self.guard = spawn([*command, str(folder), str(limit)], log=log, env=env, cwd=ROOT)

    def order(self, what: str) -> None:
        """Have something done at the next turn of the loop."""
        (self.folder / what).touch()
        eventually(lambda: not (self.folder / what).exists(), PATIENCE, what=f"the loop obeys {what}")

    def turns(self, pid: int) -> int:
        """How many turns a process has made."""
        return (self.folder / f"{pid}.turns").stat().st_size

    def lives(self, *before: int) -> int:
        """Wait until a process that is none of those `before` makes turns; returns its pid."""

        def found() -> list[int]:
            pids = [int(file.stem) for file in self.folder.glob("*.turns") if file.stat().st_size]
            return [pid for pid in pids if pid not in before]

        eventually(lambda: bool(found()), PATIENCE, what=f"a process other than {before} lives\n{self.told()}")
        return found()[0]

    def goes_on(self, pid: int) -> None:
        """Wait until a process has made another turn."""
        turns = self.turns(pid)
        eventually(lambda: self.turns(pid) > turns, PATIENCE, what=f"{pid} goes on\n{self.told()}")

    def ends(self) -> int:
        """Wait until the guard has ended, and return its exit code."""
        eventually(lambda: has_exited(self.guard), PATIENCE, what=f"the guard ends\n{self.told()}")
        return reap(self.guard)

    def told(self) -> str:
        """What guard and process have written."""
        return self._log.read_text()

    def froze(self) -> list[dict[str, Any]]:
        """Return the freezes that are in the log."""
        lines = [json.loads(line) for line in self.told().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "froze"]


@contextmanager
def guarded(folder: Path, limit: float = LIMIT, log_format: str = "json") -> Iterator[Guarded]:
    folder.mkdir(exist_ok=True)
    one = Guarded(folder, limit, log_format)
    try:
        yield one
    finally:
        reap(one.guard)  # what it guards dies with it, but no server of that
        for file in folder.glob(f"*{beating.SERVER}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)


def _line_in(function: str) -> int:
    """Return the line at which a function of the process stands when it is frozen: its last one."""
    lines, first = inspect.getsourcelines(getattr(beating, function))
    return first + len(lines) - 1


def _state(pid: int) -> str:
    return psutil.Process(pid).status()


@pytest.mark.parametrize("how", ["hold", "block"])
def test_a_frozen_loop_is_logged_with_its_stack_killed_and_started_again(tmp_path: Path, how: str) -> None:
    """One that computes, and one that waits in a system call: neither can say so itself."""
    with guarded(tmp_path) as one:
        first = one.lives()
        server = int((tmp_path / f"{first}{beating.SERVER}").read_text())
        one.order(how)
        second = one.lives(first)

        assert not psutil.pid_exists(first)
        eventually(
            lambda: not psutil.pid_exists(server), PATIENCE, what="what it had started in another session ends"
        )
        [note] = one.froze()
        assert note["frozen"].startswith(f"planq-io-{first}@")
        assert f'"{ROOT}/tests/support/beating.py", line {_line_in(how)} in {how}' in note["stack"]
        assert note["late_seconds"] >= LIMIT
        one.goes_on(second)
        (tmp_path / "end").touch()
        assert one.ends() == 3


def test_a_freeze_is_logged_as_text_where_people_read_the_log(tmp_path: Path) -> None:
    with guarded(tmp_path, log_format="text") as one:
        first = one.lives()
        one.order("block")
        one.lives(first)
        assert f"froze frozen=planq-io-{first}@" in one.told()
        assert f"line {_line_in('block')} in block" in one.told()


def test_what_was_stopped_for_longer_than_the_limit_is_not_frozen(tmp_path: Path) -> None:
    """A process that is stopped, and one that is stopped with its guard, as on a machine that sleeps.

    A third one that freezes meanwhile says when the time is over.
    """
    with guarded(tmp_path / "alone") as alone, guarded(tmp_path / "both") as both, guarded(tmp_path / "3") as frozen:
        pids = {one: one.lives() for one in (alone, both, frozen)}
        os.kill(both.guard.pid, signal.SIGSTOP)
        for one in (alone, both):
            os.kill(pids[one], signal.SIGSTOP)
        for pid in (both.guard.pid, pids[alone], pids[both]):
            eventually(lambda pid=pid: _state(pid) == psutil.STATUS_STOPPED, what=f"{pid} is stopped")
        # Twice: the guard of what is stopped alone may look less often than the other.
        for how in ("hold", "block"):
            before = [int(file.stem) for file in frozen.folder.glob("*.turns")]
            frozen.order(how)
            frozen.lives(*before)
        for pid in (pids[both], both.guard.pid, pids[alone]):
            os.kill(pid, signal.SIGCONT)

        for one in (alone, both):
            one.goes_on(pids[one])
            assert not one.froze()
            (one.folder / "end").touch()
            assert one.ends() == 3


@pytest.mark.parametrize("limit", [LIMIT, 0.0])
def test_a_process_that_is_stopped_in_a_write_is_killed_when_its_lease_is_over(tmp_path: Path, limit: float) -> None:
    """No thread of it runs, so only its guard can end it; also where no loop is watched."""
    with guarded(tmp_path, limit) as one:
        pid = one.lives()
        one.order("rest")
        one.goes_on(pid)
        one.order("act")
        assert one.ends() == 128 + signal.SIGKILL
    assert not psutil.pid_exists(pid)


def test_a_guard_that_was_suspended_kills_a_process_without_a_lease_before_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = LoopGuard("io", ["-c", ""])
    done: list[str] = []
    monkeypatch.setattr(os, "kill", lambda _, number: done.append(signal.Signals(number).name))
    monkeypatch.setattr(one, "_fence", lambda: done.append("fence"))
    one._suspend()
    assert done == ["SIGSTOP", "SIGSTOP", "fence", "SIGCONT"]


def test_signals_are_handed_on_and_the_end_is_that_of_the_process(tmp_path: Path) -> None:
    with guarded(tmp_path / "asked") as asked, guarded(tmp_path / "killed") as killed:
        asked.lives()
        asked.guard.terminate()
        assert asked.ends() == 3
        os.kill(killed.lives(), signal.SIGKILL)
        assert killed.ends() == 128 + signal.SIGKILL


def test_what_is_guarded_dies_with_its_guard(tmp_path: Path) -> None:
    with guarded(tmp_path) as one:
        pid = one.lives()
        one.guard.kill()
        eventually(lambda: not psutil.pid_exists(pid), PATIENCE, what="it dies, too")


def test_only_the_time_counts_in_which_a_process_could_have_beaten() -> None:
    """Stopped it could not, however long that takes; then it owes a beat again."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        report = Report(10.0, 1)
        watched = WatchedLoop(process.pid)
        for _ in range(3):
            watched.look(report, 1.0)
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: _state(process.pid) == psutil.STATUS_STOPPED, what="it is stopped")
        stopped = [watched.look(report, 1.0) for _ in range(60)]
        process.send_signal(signal.SIGCONT)
        eventually(lambda: _state(process.pid) != psutil.STATUS_STOPPED, what="it goes on")
        late = [watched.look(report, 1.0) for _ in range(20)]
        beaten = watched.look(report._replace(beats=2), 1.0)
        process.communicate(b"\n")

    assert max(stopped) < 0.3
    assert late == sorted(late)
    assert late[-1] > 1.0
    assert beaten == 0.0


def test_what_waits_for_a_processor_is_not_frozen_and_what_computes_without_a_beat_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine that is ten times too busy: a thread that waits, and one that has computed 40 s of 400."""

    def late_after(seconds: int, computed: float, waited: float) -> float:
        watched, times = WatchedLoop(os.getpid()), _Times(0)
        monkeypatch.setattr(guard, "_Times", lambda _: copy.deepcopy(times))
        share = 0.0
        for _ in range(seconds):
            times.computed[1] = times.computed.get(1, 0.0) + computed
            times.waited[1] = times.waited.get(1, 0.0) + waited
            share = watched.look(report, 1.0)
        return share

    report = Report(10.0, 1)
    assert late_after(400, computed=0.0, waited=1.0) < 0.5
    assert late_after(40, computed=0.02, waited=0.98) < 1.0
    assert late_after(14, computed=0.1, waited=0.9) >= 1.0, "of a processor that ten share it has had its part"
    assert late_after(12, computed=0.0, waited=0.0) >= 1.0


@pytest.mark.parametrize(
    ("gap", "waited", "is_credited"),
    [(1.2, 0.0, 1.2), (3600.0, 0.0, 2.0), (3600.0, 0.5, 2.5), (9.0, 8.0, 9.0)],
    ids=["as a rule", "asleep", "asleep, then busy", "without a processor"],
)
def test_what_stood_still_with_the_guard_has_missed_no_beat(gap: float, waited: float, is_credited: float) -> None:
    """The guard wakes from a machine's sleep before the loop does: an hour without a beat is not its delay."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        report = Report(10.0, 1)
        watched = WatchedLoop(process.pid)
        for _ in range(3):
            watched.look(report, 1.0)
        before = watched.late_seconds
        late = watched.look(report, credited(gap, 1.0, waited))
        process.communicate(b"\n")

    assert watched.late_seconds - before == pytest.approx(is_credited)
    assert late < 1.0 or gap < 3600.0


def test_who_has_the_number_of_a_process_that_has_ended_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has ended, and been waited for, in the moment in which it counts as frozen."""
    one = LoopGuard("io", ["-c", ""])
    monkeypatch.setattr(one._watched, "look", lambda *_: 1.0)
    monkeypatch.setattr(beats, "read", lambda _: Report(1.0, 1))
    monkeypatch.setattr(one, "_start", lambda: None)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        one._child, one._code = other.pid, 0
        one._look(1.0)
        other.communicate(b"\n")
    assert other.returncode == 0

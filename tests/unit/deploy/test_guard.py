"""The guard over a small process with a loop: no servers. `tests/faults/test_freezes.py` has workers and the API."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from planq.deploy.local import guard
from planq.deploy.local.child import has_exited, reap, spawn
from planq.deploy.local.freezes import StackFrame, row_of, told_place
from planq.deploy.local.guard import LoopGuard, WatchedLoop, _Times, credited
from planq.shared.beats import Slot
from planq.shared.computing import off_loop
from planq.shared.domain.frames import under_name
from planq.shared.domain.jobs.ids import StepRef
from planq.worker.tools.threads import ToolThreads
from tests.support import beating
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a guard needs to know what only Linux tells")

ROOT = Path(__file__).parents[3]
LIMIT = 1.0
PATIENCE = 60.0


class Guarded:
    """A guard and what it guards, with the files by which that is told what to do."""

    def __init__(self, folder: Path, limit: float = LIMIT) -> None:
        self.folder = folder
        self._log = folder / "log"
        # Nobody listens there: the log says what was to be noted, and that it was not.
        env = {**os.environ, "DATABASE_URL": "postgresql://x@127.0.0.1:1/x", "PLANQ_LOG_FORMAT": "json"}
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
        """The freezes that were noted in the log."""
        lines = [json.loads(line) for line in self.told().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == "froze"]


@contextmanager
def guarded(folder: Path, limit: float = LIMIT) -> Iterator[Guarded]:
    folder.mkdir(exist_ok=True)
    one = Guarded(folder, limit)
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
def test_a_frozen_loop_is_noted_with_its_place_killed_and_started_again(tmp_path: Path, how: str) -> None:
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
        assert f"tests.support.beating:{_line_in(how)} {how} < tests.support.beating:" in note["place"]
        assert str(ROOT) not in note["place"]
        assert f'"{ROOT}/tests/support/beating.py", line {_line_in(how)} in {how}' in note["stack"]
        assert note["late_seconds"] >= LIMIT
        one.goes_on(second)
        (tmp_path / "end").touch()
        assert one.ends() == 3


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
        slot = Slot(0, process.pid, 0, process.pid, 10.0, 1, "0" * 32)
        watched = WatchedLoop()
        for _ in range(3):
            watched.look(slot, 1.0)
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: _state(process.pid) == psutil.STATUS_STOPPED, what="it is stopped")
        stopped = [watched.look(slot, 1.0) for _ in range(60)]
        process.send_signal(signal.SIGCONT)
        eventually(lambda: _state(process.pid) != psutil.STATUS_STOPPED, what="it goes on")
        late = [watched.look(slot, 1.0) for _ in range(20)]
        beaten = watched.look(slot._replace(beats=2), 1.0)
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
        watched, times = WatchedLoop(), _Times(0)
        monkeypatch.setattr(guard, "_Times", lambda _: copy.deepcopy(times))
        share = 0.0
        for _ in range(seconds):
            times.computed[1] = times.computed.get(1, 0.0) + computed
            times.waited[1] = times.waited.get(1, 0.0) + waited
            share = watched.look(slot, 1.0)
        return share

    slot = Slot(0, os.getpid(), 0, 1, 10.0, 1, "0" * 32)
    assert late_after(400, computed=0.0, waited=1.0) < 0.5
    assert late_after(40, computed=0.02, waited=0.98) < 1.0
    assert late_after(14, computed=0.1, waited=0.9) >= 1.0, "of a processor that ten share it has had its part"
    assert late_after(12, computed=0.0, waited=0.0) >= 1.0


@pytest.mark.parametrize(
    ("computed", "waited", "turns", "culprit"),
    [(0.2, 0.0, 1, 2), (0.01, 0.9, 5, 2), (0.01, 0.9, 0, 1), (0.01, 0.1, 5, 1)],
    ids=["it computes", "it wants to, on a busy machine", "the loop stands still by itself", "nobody computes"],
)
def test_who_holds_up_a_loop_is_the_thread_that_computes_or_would(
    monkeypatch: pytest.MonkeyPatch, computed: float, waited: float, turns: int, culprit: int
) -> None:
    """On a busy machine a freeze was laid to nobody: the thread that held the interpreter had computed little."""
    watched, times = WatchedLoop(), _Times(0)
    monkeypatch.setattr(guard, "_Times", lambda _: copy.deepcopy(times))
    slot = Slot(0, os.getpid(), 0, 1, 10.0, 1, "0" * 32)
    for second in range(14):
        times.computed = {1: 0.001 * second * turns, 2: computed * second}
        times.waited = {1: 0.1 * second, 2: waited * second}
        times.turns = {1: turns * second, 2: second}
        watched.look(slot, 1.0)

    assert watched.culprit(slot) == culprit


@pytest.mark.parametrize(
    ("gap", "waited", "is_credited"),
    [(1.2, 0.0, 1.2), (3600.0, 0.0, 2.0), (3600.0, 0.5, 2.5), (9.0, 8.0, 9.0)],
    ids=["as a rule", "asleep", "asleep, then busy", "without a processor"],
)
def test_what_stood_still_with_the_guard_has_missed_no_beat(gap: float, waited: float, is_credited: float) -> None:
    """The guard wakes from a machine's sleep before the loop does: an hour without a beat is not its delay."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        slot = Slot(0, process.pid, 0, process.pid, 10.0, 1, "0" * 32)
        watched = WatchedLoop()
        for _ in range(3):
            watched.look(slot, 1.0)
        before = watched.late_seconds
        late = watched.look(slot, credited(gap, 1.0, waited))
        process.communicate(b"\n")

    assert watched.late_seconds - before == pytest.approx(is_credited)
    assert late < 1.0 or gap < 3600.0


def test_who_has_the_number_of_a_process_that_has_ended_is_left_alone() -> None:
    """A worker ends a process for suspects whose job is cancelled, in the moment in which that counts as frozen."""
    one = LoopGuard("io", ["-c", ""])
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        one._end(Slot(0, other.pid, 1, other.pid, 1.0, 1, "0" * 32), WatchedLoop())
        other.communicate(b"\n")
    assert other.returncode == 0
    assert not one._recorders


def test_a_place_names_modules_and_no_folder_of_the_machine() -> None:
    frames = [
        StackFrame("/usr/lib/python3.11/re/__init__.py", 166, "match"),
        StackFrame("/srv/secret/customer/tools.py", 6, "parse"),
        StackFrame("/opt/planq/lib/site-packages/planq/worker/tools/function.py", 106, "_run"),
        StackFrame("<frozen runpy>", 88, "_run_code"),
    ]
    path = ["/usr/lib/python3.11", "/opt/planq/lib/site-packages", "/opt"]
    assert told_place(frames, path) == "re:166 match < tools:6 parse"
    deep = [StackFrame("/srv/app/walk.py", line, "down" * 99) for line in range(60)]
    assert len(told_place(deep, path)) < 800
    assert told_place([], path) == "not known: the process wrote no stack"


def test_the_attempt_that_froze_stands_in_the_stack_of_the_current_thread() -> None:
    job = UUID("01900000-0000-7000-8000-000000000001")
    stack = f"""Thread 0x0001 (most recent call first):
  File "/x/a.py", line 1 in planq:{UUID(int=9)}:0:1:1

Current thread 0x0002 (most recent call first):
  File "/x/tools.py", line 6 in parse
  File "/x/frames.py", line 47 in planq:{job}:2:3:4
  File "/x/pool.py", line 109 in _run_loop
"""
    noted = {"stack": stack, "worker": "0" * 32, "process": "p", "kind": "io"}
    row = row_of(noted, ["/x"])
    assert (row["job_id"], row["round"], row["index"], row["attempt"]) == (job, 2, 3, 4)
    assert (row["place"], row["id"]) == (
        "tools:6 parse < frames:47 planq:" + f"{job}:2:3:4 < pool:109 _run_loop",
        None,
    )


def test_what_an_attempt_has_done_in_a_thread_runs_below_a_frame_of_its_name() -> None:
    """A synchronous tool may hold the interpreter as well as the loop may, and so may a check of a large value."""

    def stack() -> str:
        return "".join(traceback.format_stack())

    async def work() -> list[str]:
        return [await ToolThreads().call(stack, {}), await off_loop(stack)]

    name = f"in planq:{UUID(int=7)}:1:2:3\n"
    assert all(name in one for one in asyncio.run(under_name(StepRef(UUID(int=7), 1, 2), 3, work())))
    assert not any("in planq:" in one for one in asyncio.run(work()))


def test_an_attempt_runs_below_a_frame_of_its_name() -> None:
    async def work() -> str:
        return "".join(traceback.format_stack())

    step = under_name(StepRef(UUID(int=7), 1, 2), 3, work())
    stage = under_name(UUID(int=7), 3, work())
    assert f"in planq:{UUID(int=7)}:1:2:3\n" in asyncio.run(step)
    assert f"in planq:{UUID(int=7)}:0:-1:3\n" in asyncio.run(stage)

"""Children: they die with their parent, stop step by step, and take their group along."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from planq.deploy.local.child import has_exited, reap, send, spawn, stop, wait_ended
from tests.support.living import is_alive
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
PAUSE = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
WITH_CHILD = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {PAUSE!r}]).wait()"


def start(script: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        child = spawn([sys.executable, "-c", script], log=out)
    eventually(lambda: "ready" in log.read_text())
    return child


def test_a_child_stops_at_the_first_step_that_it_heeds(tmp_path: Path) -> None:
    child = start(PAUSE, tmp_path / "log")

    assert stop(child, (signal.SIGTERM, 10.0)) == -signal.SIGTERM
    assert stop(child, (signal.SIGTERM, 10.0)) == -signal.SIGTERM  # once more: nothing to do


def test_a_stubborn_child_is_killed_with_its_group(tmp_path: Path) -> None:
    child = start(WITH_CHILD, tmp_path / "log")
    (grandchild,) = psutil.Process(child.pid).children()

    assert stop(child) == -signal.SIGKILL

    eventually(lambda: not is_alive(grandchild))


def test_a_signal_that_is_ignored_leads_to_the_next_step(tmp_path: Path) -> None:
    child = start(STUBBORN, tmp_path / "log")

    assert stop(child, (signal.SIGTERM, 0.1), (signal.SIGINT, 10.0)) != -signal.SIGKILL


def test_looking_does_not_reap(tmp_path: Path) -> None:
    child = start(PAUSE, tmp_path / "log")
    assert not has_exited(child)
    assert not wait_ended(child, 0.01)

    send(child, signal.SIGKILL)

    assert wait_ended(child, 10.0)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE  # its number stays reserved
    assert reap(child) == -signal.SIGKILL
    send(child, signal.SIGKILL)  # to nobody: the child has been reaped


def test_a_child_dies_with_its_parent() -> None:
    script = (
        "import subprocess, sys\nfrom planq.deploy.local.child import spawn\n"
        f"child = spawn([sys.executable, '-c', {PAUSE!r}], log=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        # Only once it has become the command is it tied for certain.
        eventually(lambda: "signal.pause" in (seen := " ".join(child.cmdline())) and "--parent" not in seen)

        parent.kill()

        eventually(lambda: not is_alive(child))


def test_a_command_that_does_not_exist_is_said_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as out:
        child = spawn(["no-such-command"], log=out)

    assert wait_ended(child, 10.0)
    assert reap(child) == 1
    assert "launcher: [Errno 2]" in log.read_text()


def test_a_child_hears_signals_that_its_parent_ignores_or_blocks(tmp_path: Path) -> None:
    asked = "import signal as s; print([s.getsignal(n) for n in (2, 3, 15, 1)], s.pthread_sigmask(s.SIG_BLOCK, ()))"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        with (tmp_path / "log").open("wb") as log:
            process = spawn([sys.executable, "-c", asked], log=log)
        assert wait_ended(process, 60)
        reap(process)
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    heard = (tmp_path / "log").read_text()
    assert "default_int_handler" in heard
    assert "SIG_IGN" not in heard
    assert heard.endswith("set()\n")

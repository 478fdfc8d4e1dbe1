"""Seeing that processes of this machine have gone, on real ones; and a /proc that does not tell."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planq.shared.kernel.processes import Process
from planq.shared.kernel.states import Pool
from planq.worker.container import process_text
from planq.worker.local_processes import Host
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells; elsewhere leases decide")

GIVE_WAY = """
import os, pathlib
from planq.worker.local_processes import give_way
before = os.nice(0)
give_way()
session = pathlib.Path("/proc/self/autogroup")
told = session.read_text().split("nice ")[1] if session.exists() else 5
print(os.nice(0) - before, int(told))
"""
TELL = "from planq.worker.local_processes import Host; print(Host().own.text, flush=True); "
STAY = "import signal; signal.pause()"
FORK = "import os; os.fork() or os.write(1, b'%d\\n' % os.getpid()); "
LAST_THREAD = (
    "import ctypes, threading, platform; threading.Thread(target=threading.Event().wait).start(); "
    "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)"
)
"""The first thread ends alone (exit(2), not exit_group(2)); the process goes on."""

Start = Callable[[str], tuple[subprocess.Popen[str], str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that tells who it is and then runs some Python; it is a group of its own."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", TELL + program], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_process_that_gives_way_is_weighed_less_and_so_is_its_session() -> None:
    done = subprocess.run([sys.executable, "-c", GIVE_WAY], capture_output=True, check=True, start_new_session=True)
    assert done.stdout.split() == [b"5", b"5"]


def ended(process: subprocess.Popen[str]) -> None:
    """Wait until a process has ended, without waiting *for* it: it stays a zombie."""
    eventually(lambda: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), what="it has ended")


def test_a_process_that_lives_sleeps_or_is_stopped_has_not_gone(start: Start) -> None:
    process, text = start(STAY)
    assert Host().place == Process.parse(text).place
    assert not Host().has_gone(text)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert not Host().has_gone(text)


def test_a_process_that_was_killed_has_gone_before_anybody_waits_for_it_and_after(start: Start) -> None:
    process, text = start(STAY)
    process.kill()
    ended(process)
    assert Host().has_gone(text)
    process.wait()
    assert Host().has_gone(text)


def test_a_process_that_has_the_number_of_an_earlier_one_is_not_that_one(start: Start) -> None:
    _, text = start(STAY)
    earlier = replace(Process.parse(text), started=Process.parse(text).started - 1)
    assert not Host().has_gone(earlier.text), "nobody can tell who is in its group"
    gone, _ = start(STAY)
    gone.kill()
    gone.wait()
    assert Host().has_gone(replace(earlier, group=gone.pid).text)


def test_what_a_process_has_forked_must_have_ended_too(start: Start) -> None:
    process, text = start(FORK + STAY)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    ended(process)
    assert not Host().has_gone(text)
    process.wait()
    assert not Host().has_gone(text)
    os.kill(child, signal.SIGKILL)
    eventually(lambda: Host().has_gone(text), what="the child has ended too")


def test_a_process_whose_first_thread_alone_has_ended_has_not_gone(start: Start) -> None:
    process, text = start(LAST_THREAD)

    def is_shown_as_dead() -> bool:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    eventually(is_shown_as_dead, what="the first thread has ended")
    assert not Host().has_gone(text)
    process.kill()
    eventually(lambda: Host().has_gone(text), what="all threads have ended")


@pytest.mark.parametrize("change", [{"boot": "another"}, {"pids": 1}, {"times": 1}])
def test_nobody_is_seen_to_go_elsewhere(start: Start, change: dict[str, Any]) -> None:
    process, text = start(STAY)
    process.kill()
    process.wait()
    assert not Host().has_gone(replace(Process.parse(text), **change).text)


@pytest.mark.parametrize("text", ["", "nonsense", "a b c d e f"])
def test_what_names_no_process_has_not_gone(text: str) -> None:
    assert not Host().has_gone(text)


def proc_of(folder: Path, *, names: str, pids: Iterator[int] | tuple[int, ...] = ()) -> Path:
    """A /proc that shows this process and `pids` alone; `names` are the numbers of this one, the outermost first."""
    own = Path("/proc/self")
    shown = folder / "self"
    (shown / "ns").mkdir(parents=True)
    for name in ("pid", "time"):
        (shown / "ns" / name).symlink_to(own / "ns" / name)
    (shown / "status").write_text(f"Name:\tpython\nNSpid:\t{names}\n")
    boot = folder / "sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    for pid in (os.getpid(), *pids):
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(Path(f"/proc/{pid}/stat").read_text())
    return folder


def test_a_proc_that_hides_the_processes_of_others_proves_nothing(tmp_path: Path, start: Start) -> None:
    process, text = start(FORK + STAY)
    process.kill()
    ended(process)
    hiding = proc_of(tmp_path, names=str(os.getpid()), pids=(process.pid,))
    (hiding / str(process.pid) / "task" / str(process.pid)).mkdir(parents=True)
    assert Host(hiding).place == Host().place
    assert not Host(hiding).has_gone(text), "the first process of all is hidden, so others may be"


def test_a_process_that_exists_but_is_not_shown_has_not_gone(tmp_path: Path, start: Start) -> None:
    _, text = start(STAY)
    assert not Host(proc_of(tmp_path, names=str(os.getpid()), pids=(1,))).has_gone(text)


@pytest.mark.parametrize("names", ["", f"1234 {os.getpid()}"], ids=["untold", "of an outer namespace"])
def test_a_proc_of_another_namespace_is_not_believed(tmp_path: Path, names: str) -> None:
    assert Host(proc_of(tmp_path, names=names)).own is None


def test_without_a_proc_nobody_is_seen(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert (host.own, host.place) == (None, None)
    assert not host.has_gone("a 1 2 3 4 5")


@pytest.mark.parametrize(
    ("pool", "server", "tells"),
    [
        (Pool.IO, {"command": "server"}, False),
        (Pool.IO, {"command": "server", "disabled": True}, True),
        (Pool.IO, {"url": "http://localhost/mcp"}, True),
        (Pool.CPU, {"command": "server"}, True),
    ],
)
def test_a_worker_whose_stdio_servers_may_outlive_it_does_not_tell_which_process_it_is(
    tmp_path: Path, pool: Pool, server: dict[str, object], tells: bool
) -> None:
    # Pins: a call was begun again while the server of a killed worker, in its own session, still carried it out.
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"one": server}}))
    host = Host()
    assert host.own is not None
    assert process_text(host, pool, file) == (host.own.text if tells else None)
    assert process_text(host, pool, None) == host.own.text

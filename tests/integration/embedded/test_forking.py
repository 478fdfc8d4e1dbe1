"""The fork server: its forks are children of whoever asks, with the environment that was asked for and no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from planq.deploy.local.child import has_exited, reap, send
from tests.support.forking import Forked, ForkServer, fork_server
from tests.support.living import is_alive
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]

# `timeit` puts `.` in front of the path.
TELL = (
    "import json, os, sys; print(json.dumps({'env': dict(os.environ), 'cwd': os.getcwd(), 'argv': sys.argv[1:], "
    "'path': sys.path[1], 'session': os.getsid(0), 'files': len(os.listdir('/proc/self/fd')), "
    "'early': 'planq.worker.celery.app' in sys.modules}), flush=True)"
)
PAUSE = "import signal; print('ready', flush=True); signal.pause()"

ORPHAN = f"""
from pathlib import Path
from tests.support.forking import fork_server
with open({{log!r}}, "wb") as log:
    child = fork_server().fork(["timeit", "-n", "1", "-r", "1", {PAUSE!r}], log=log, env={{env!r}}, cwd=Path("/"))
print(child.pid, flush=True)
input()
"""


@pytest.fixture
def server() -> ForkServer:
    found = fork_server()
    assert found is not None, "the tests run where there is none"
    return found


def start(server: ForkServer, code: str, log: Path, **env: str) -> Forked:
    """Run code in a fork: `timeit` is a module that does so."""
    with log.open("wb") as out:
        return server.fork(["timeit", "-n", "1", "-r", "1", code], log=out, env=env, cwd=log.parent)


def test_a_fork_is_what_a_new_process_would_be(server: ForkServer, tmp_path: Path) -> None:
    child = start(server, TELL, tmp_path / "log", ONLY="this")

    assert psutil.Process(child.pid).ppid() == os.getpid()
    eventually(lambda: has_exited(child), what="it has ended")
    assert reap(child) == 0
    told = json.loads((tmp_path / "log").read_text().splitlines()[0])
    assert told["env"] == {"ONLY": "this"}
    assert (told["cwd"], told["path"]) == (str(tmp_path), str(tmp_path))
    assert told["argv"] == ["-n", "1", "-r", "1", TELL]
    assert told["session"] == child.pid
    assert told["files"] == 4, "standard input, output, error, and the folder that it looks into"
    assert not told["early"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os; os._exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("raise ValueError('what went wrong')", 1),
    ],
)
def test_how_it_ended_is_seen_as_with_any_child(server: ForkServer, tmp_path: Path, code: str, expected: int) -> None:
    child = start(server, code, tmp_path / "log")

    eventually(lambda: has_exited(child), what="it has ended")

    assert child.poll() == expected
    assert child.wait() == reap(child) == expected
    assert ("what went wrong" in (tmp_path / "log").read_text()) == (expected == 1)


def test_a_signal_reaches_it(server: ForkServer, tmp_path: Path) -> None:
    child = start(server, PAUSE, tmp_path / "log")
    eventually(lambda: "ready" in (tmp_path / "log").read_text())
    assert not has_exited(child)

    send(child, signal.SIGTERM)

    eventually(lambda: has_exited(child), what="it has ended")
    assert reap(child) == -signal.SIGTERM


def test_it_dies_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    script = ORPHAN.format(log=str(tmp_path / "log"), env={"PATH": os.environ["PATH"]})
    asking = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    with asking:
        assert asking.stdout is not None
        child = psutil.Process(int(asking.stdout.readline()))
        family = [child, *psutil.Process(asking.pid).children()]
        eventually(lambda: "ready" in (tmp_path / "log").read_text())
        asking.kill()

    _, living = psutil.wait_procs(family, timeout=60)
    assert list(filter(is_alive, living)) == []


def test_what_is_read_once_must_be_as_it_was(server: ForkServer) -> None:
    assert server.takes({**os.environ, "PLANQ_HOST": "127.0.0.1"})
    assert not server.takes({**os.environ, "PYTHONDEVMODE": "1"})
    assert not server.takes({**os.environ, "TZ": "Asia/Kathmandu"})

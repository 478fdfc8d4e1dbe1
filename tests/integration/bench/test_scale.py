"""The scale-out benchmark with one tiny load: on hosts of its own where that is allowed, explained where it is not.

However it ends, neither a process nor a network namespace of it stays behind.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.bench import scale
from tests.bench.scaling import network
from tests.bench.scaling.host import network_of
from tests.support.tiers import rare
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
TINY = ["--workers", "1", "--concurrency", "4", "--tool-seconds", "0.05", "--steps", "2", "--seconds", "0.5"]


@pytest.fixture(scope="module")
def forbidden() -> str | None:
    """What keeps this machine from having hosts, None when nothing does."""
    return network.missing()


@pytest.mark.whole
def test_it_measures_a_worker_on_a_host_of_its_own(capsys: pytest.CaptureFixture[str], forbidden: str | None) -> None:
    interfaces = socket.if_nameindex()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        code = scale.main(["hosts", "--json", *TINY])
    finally:
        signal.signal(signal.SIGTERM, handler)

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert socket.if_nameindex() == interfaces
    if forbidden:
        assert found["no_hosts"] == forbidden
        assert found["sleeping"] == {}
        return
    usage = found["sleeping"]["on hosts"]["1"]
    assert usage["steps"] > 0
    assert usage["slots"] == 4
    assert 0 < usage["busy_slots"] < 5, "a share of the time that was measured, to a tenth or so"
    assert usage["wire_bytes"] > 1_000  # PostgreSQL and the broker were reached over the cable
    assert usage["cpu"]["io-1"] > 0


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The benchmark, busy on hosts for as long as it takes."""
    command = [sys.executable, "-m", "tests.bench.scale", "hosts", *TINY, "--seconds", "600"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}  # what is killed leaves its data behind
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [rare(signal.SIGINT), signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_it_leaves_nothing_behind(
    program: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals, forbidden: str | None
) -> None:
    if forbidden:
        assert program.wait(60) == 0
        assert f"Not measured on several hosts: {forbidden}." in (tmp_path / "output").read_text()
        return
    top = psutil.Process(program.pid)
    outside = network_of()

    def networks() -> set[str]:
        """Return the networks, other than the machine's, in which processes of the program are."""
        found = set()
        for child in top.children(recursive=True):
            with suppress(OSError):  # it has just ended, or is somebody else's
                found.add(network_of(child.pid))
        return found - {outside}

    eventually(lambda: len(networks()) == 2, 60, what="the servers have a network, and a worker has a host")
    begun = top.children(recursive=True)
    program.send_signal(number)
    program.wait(60)

    eventually(lambda: not any(child.is_running() for child in begun), 60, what="every process has ended")

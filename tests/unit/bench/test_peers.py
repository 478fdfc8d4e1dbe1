"""A peer's process: told what to do over its standard input, and what becomes of its errors and its silence."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.peers import environment, subjects
from tests.bench.peers.subjects import Peer

PEER = """
from tests.bench.peers.orders import expect, serve
serve({"good": lambda size: expect(size, 3), "ends": lambda size: exit(size)})
"""


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    log = tmp_path / "peer.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", PEER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=subjects.ROOT,
        )
    with process:
        started = Peer("Tortoise", process, log)
        started.wait_ready()
        yield started


def test_a_peer_measures_each_run_itself(peer: Peer) -> None:
    seconds = peer.run("good", size=3, times=4)

    assert len(seconds) == 4
    assert all(0 <= each < 10 for each in seconds)


def test_work_with_a_wrong_result_is_no_measurement_and_ends_nothing(peer: Peer) -> None:
    with pytest.raises(RuntimeError, match="Tortoise, good: RuntimeError: expected 3, found 2"):
        peer.run("good", size=2, times=1)

    assert len(peer.run("good", size=3, times=1)) == 1


def test_a_peer_that_ends_is_named(peer: Peer) -> None:
    with pytest.raises(RuntimeError, match="Tortoise gave no answer"):
        peer.run("ends", size=1, times=1)


def test_the_peers_are_pinned_by_hash_to_the_versions_that_are_asked_for() -> None:
    lock = environment.LOCK.read_text("utf-8")
    wanted = [re.sub(r"\[.*]", "", line) for line in environment.LOCK.with_suffix(".in").read_text("utf-8").split()]

    assert set(environment.PACKAGES.values()) <= {line.partition("==")[0] for line in wanted}
    for line in wanted:
        assert re.search(rf"^{re.escape(line)}\b[^\n]* \\\n +--hash=sha256:", lock, re.MULTILINE), line

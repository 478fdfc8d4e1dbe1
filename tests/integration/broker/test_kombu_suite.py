"""kombu's own integration tests for Redis, on our transport: what it mends must not break what it is made of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from planq.deploy.local.child import spawn, stop
from planq.deploy.local.valkey import installed_binary
from tests.support import kombu_suite
from tests.support.pinned_env import ROOT
from tests.support.ports import free_port
from tests.support.waiting import eventually

SHARDS = 3
MORE_RUNS = 3
"""kombu marks most of these as flaky and runs them up to five times more: they wait a second here and there."""

SUITE = "t/integration/test_redis.py"

EMULATED = (
    "it looks at kombu's bookkeeping of unacknowledged messages in Redis, which planq does not use: what is lost "
    "with a worker, or was refused when it was given back, the sweeper publishes again"
)

EXCUSED: Mapping[str, str] = {
    "test_RedisRestoreVisible::test_restore_visible_requeues_expired_unacked": EMULATED,
    "test_RedisRestoreBindingLookupFailure::test_requeue_requeues_message": EMULATED,
    "test_RedisRestoreBindingLookupFailure::test_failed_requeue_keeps_message_unacked": EMULATED,
    "test_RedisRestoreBindingLookupFailure::test_failed_restore_visible_keeps_message_unacked": EMULATED,
    "test_RedisRestoreAtShutdown::test_unacked_message_requeued_on_connection_close": EMULATED,
}
"""Tests that fail with planq's options, without their parameters, and why it cannot matter."""

Found = tuple[dict[str, bool], str]
"""Which tests ran and whether each passed in one of its runs, and what was printed."""


def outcomes(report: Path) -> dict[str, bool]:
    """Return which tests ran, and whether each passed; none may have been skipped."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    assert not [case.get("name") for case in cases if case.find("skipped") is not None]
    return {
        "::".join([*case.get("classname", "").split(".")[3:], case.get("name", "")]): case.find("failure") is None
        and case.find("error") is None
        for case in cases
    }


def run(folder: Path, port: int, wanted: Collection[str], **env: str) -> Found:
    """Run tests of the suite (all of a shard, if none is named)."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    suite = kombu_suite.folder()
    python = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={suite}", "-q", "--tb=short"]
    options = ["-o", "python_classes=test_", "-p", "tests.support.kombu_suite", "-p", "no:cacheprovider"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    places = [f"{SUITE}::{name}" for name in wanted] or [SUITE]
    done = subprocess.run(
        [*python, *options, "--timeout", "60", f"--junit-xml={report}", *places],
        cwd=suite,
        env={**clean, "PYTHONPATH": str(ROOT), "REDIS_HOST": "127.0.0.1", "REDIS_6379_TCP": str(port), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    return outcomes(report), done.stdout


def run_shard(folder: Path, port: int, **env: str) -> Found:
    """Run a shard, and what fails in it a few times more."""
    found, told = run(folder, port, (), **env)
    for _ in range(MORE_RUNS):
        again = [name for name, passed in found.items() if not passed and name.partition("[")[0] not in EXCUSED]
        if not again:
            break
        env[kombu_suite.SHARD] = "0/1"
        second, told = run(folder, port, again, **env)
        found |= second
    return found, told


@contextmanager
def valkey_on_tcp(folder: Path) -> Iterator[int]:
    """A Valkey of its own that listens as kombu's tests expect it; yields its port."""
    port, log = free_port(), folder / "valkey.log"
    flags = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with log.open("wb") as out:
        server = spawn([str(installed_binary()), *flags], log=out)
    try:
        eventually(lambda: b"eady to accept" in log.read_bytes(), 60, what="Valkey answers")
        yield port
    finally:
        stop(server)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Future[Found]]]]:
    """Both modes in shards, all at once: most of their time is waiting."""
    kombu_suite.folder()
    modes = {"as they are": {}, "with planq's options": {kombu_suite.OPTIONS: "1"}}
    with ExitStack() as servers, ThreadPoolExecutor(len(modes) * SHARDS) as pool:
        begun: dict[str, list[Future[Found]]] = {}
        for mode, env in modes.items():
            for number in range(SHARDS):
                folder = tmp_path_factory.mktemp("kombu")
                port = servers.enter_context(valkey_on_tcp(folder))
                shard = {kombu_suite.SHARD: f"{number}/{SHARDS}", **env}
                begun.setdefault(mode, []).append(pool.submit(run_shard, folder, port, **shard))
        yield begun
        pool.shutdown(cancel_futures=True)


def failed(shards: Iterable[Future[Found]]) -> tuple[list[str], str]:
    """Return the tests that failed, and what was printed."""
    ended = [shard.result() for shard in shards]
    assert sum(len(found) for found, _ in ended) > 100, "these are kombu's tests"
    names = [name for found, _ in ended for name, passed in found.items() if not passed]
    return names, "\n".join(told for _, told in ended)


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_they_pass_as_they_are(runs: dict[str, list[Future[Found]]]) -> None:
    names, told = failed(runs["as they are"])

    assert names == [], told


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_with_planqs_options_only_those_fail_that_cannot_matter(runs: dict[str, list[Future[Found]]]) -> None:
    names, told = failed(runs["with planq's options"])

    assert {name.partition("[")[0] for name in names} == set(EXCUSED), told

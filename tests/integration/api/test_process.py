"""`python -m planq.api` as a process: how it refuses to start, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import httpx
import pytest

from tests.integration.api.conftest import Jobs
from tests.support.stack import Stack
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]


def start_refused(**changed: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m planq.api`, which must end by itself."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PLANQ_")}
    servers = {"DATABASE_URL": "postgresql://127.0.0.1:1/x", "BROKER_URL": "redis://127.0.0.1:1/0"}
    return subprocess.run(
        [sys.executable, "-m", "planq.api"],
        env=clean | servers | changed,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_bind_that_others_can_reach_needs_keys() -> None:
    ended = start_refused(PLANQ_HOST="0.0.0.0")

    assert ended.returncode == 2
    assert ended.stderr.startswith("planq api: bad settings: PLANQ_HOST is '0.0.0.0'")
    assert len(ended.stderr.splitlines()) == 1


def test_a_setting_that_cannot_be_read_is_named() -> None:
    ended = start_refused(PLANQ_PORT="http")

    assert ended.returncode == 2
    assert "port" in ended.stderr.lower()
    assert "Traceback" not in ended.stderr


def test_a_foreign_schema_is_refused(empty_database_url: str) -> None:
    ended = start_refused(DATABASE_URL=empty_database_url)

    assert ended.returncode == 2
    assert "planq migrate" in ended.stderr


def test_a_port_that_is_taken_is_named(database_url: str, taken_port: int) -> None:
    ended = start_refused(DATABASE_URL=database_url, PLANQ_PORT=str(taken_port))

    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(f"planq api: cannot listen on 127.0.0.1 port {taken_port}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_who_waits_and_ends_in_order(
    stack_api: Stack, database_url: str, number: signal.Signals
) -> None:
    job = httpx.post(f"{stack_api.url}/jobs", json={"input": "a"}, trust_env=False).json()
    waiting = "planq_waiting_clients 1.0"
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            lambda: httpx.get(f"{stack_api.url}/jobs/{job['id']}?wait=60", timeout=70, trust_env=False)
        )
        eventually(lambda: waiting in httpx.get(f"{stack_api.url}/metrics", trust_env=False).text)

        begun = monotonic()
        process = stack_api.processes["api"]
        process.send_signal(number)

        assert answer.result(timeout=60).json()["status"] == "queued"
        assert process.wait(60) == 0
    assert monotonic() - begun < 40, "long before its time is over"
    assert Jobs(database_url).execute("SELECT status FROM jobs") == [{"status": "queued"}]


@pytest.mark.parametrize(("env", "needs"), [({}, False), ({"PLANQ_REQUIRE_KEYS": "true"}, True)])
def test_the_log_says_whether_a_key_is_needed(
    tmp_path: Path, database_url: str, api_valkey: str, env: dict[str, str], needs: bool
) -> None:
    stack = Stack(tmp_path, database_url, api_valkey)
    stack.run("api", "-m", "planq.api", env=env)

    def told() -> dict[str, object] | None:
        lines = [json.loads(line) for line in stack.log("api").read_text().splitlines() if line.startswith("{")]
        return next((line for line in lines if line["event"] == "api_listening"), None)

    line = eventually(told, 60, what="the API says that it listens")
    stack.stop()
    assert line["needs_key"] is needs


@pytest.fixture
def stack_api(tmp_path: Path, database_url: str, api_valkey: str) -> Iterator[Stack]:
    """The API alone, as a process, answering."""
    stack = Stack(tmp_path, database_url, api_valkey, fresh=True)
    stack.run("api", "-m", "planq.api")

    def answers() -> bool:
        try:
            return httpx.get(f"{stack.url}/healthz", timeout=60, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    eventually(answers, 60, what="the API answers")
    yield stack
    stack.stop()

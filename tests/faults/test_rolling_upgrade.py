"""From this release to a made-up next one and back, one process after the other, while everything is in flight."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import psycopg
import pytest

from planq import Client
from planq.deploy.local.child import has_exited
from planq.shared.kernel import schema_version as schema
from tests.support import next_release
from tests.support.ports import free_port
from tests.support.stack import ROOT, Stack
from tests.support.waiting import eventually

JOBS, QUESTIONS, LINES, STREAMS, CHATS = 1_000, 100, 100, 10, 10
PATIENCE = 300.0

SETTINGS = {
    "PLANQ_TOOLS": "tests.faults.tools,tests.faults.upgraded",
    "PLANQ_DATABASE_CONNECTIONS": "4",
    "PLANQ_HEARTBEAT_SECONDS": "1",
    "PLANQ_SWEEP_SECONDS": "0.5",
}


class Fleet:
    """Two APIs and four workers of either release, and whoever calls the APIs as a load balancer does."""

    def __init__(self, folder: Path, database_url: str, broker_url: str, next_tree: Path) -> None:
        ports = {"api-a": free_port(), "api-b": free_port()}
        self._database_url, self._next = database_url, next_tree
        self.stack = Stack(
            folder, database_url, broker_url, env={**SETTINGS, "FAULT_FOLDER": str(folder)}, fresh=True
        )
        self._ports = ports
        self._http = httpx.Client(timeout=60, trust_env=False)
        self._open: list[str] = []
        self._turns = itertools.count()
        self.statuses: Counter[int] = Counter()

    def environment(self, *, is_next: bool) -> Mapping[str, str]:
        path = f"{self._next}{os.pathsep}{ROOT}" if is_next else str(ROOT)
        return {"PYTHONPATH": path}

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._ports[name]}"

    def migrate(self, tree: Path | None, *options: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": "/usr/bin:/bin", "DATABASE_URL": self._database_url}
        env |= {} if tree is None else {"PYTHONPATH": str(tree)}
        command = [sys.executable, "-m", "planq.deploy.cli.main", "migrate", *options]
        return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    def start(self, name: str, *, is_next: bool) -> None:
        env = dict(self.environment(is_next=is_next))
        if name.startswith("api"):
            self.stack.run(name, "-m", "planq.api", env={**env, "PLANQ_PORT": str(self._ports[name])})
            eventually(lambda: self._is_ready(name), PATIENCE, what=f"{name} is ready")
            self._open.append(name)
        else:
            pool, _, number = name.partition("-")
            before = self._workers()
            self.stack.run_worker(pool, int(number), env=env)
            eventually(lambda: self._workers() > before, PATIENCE, what=f"{name} lives")

    def replace(self, name: str, *, is_next: bool) -> None:
        """Stop one process as a deployment does, and start it as one of the other release."""
        if name in self._open:
            self._open.remove(name)  # a balancer sends it nothing more
        process = self.stack.processes[name]
        self.stack.terminate(name)
        eventually(lambda: has_exited(process), PATIENCE, what=f"{name} has drained")
        self.stack.processes.pop(name).wait()
        self.start(name, is_next=is_next)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request to the next API that is open; a connection that was closed under it is tried again."""
        headers = more.pop("headers", {})
        for _ in range(5):
            names = list(self._open)
            url = self.url(names[next(self._turns) % len(names)])
            try:
                response = self._http.request(method, f"{url}{path}", headers=headers, **more)
            except httpx.TransportError:
                continue
            self.statuses[response.status_code] += 1
            return response
        raise AssertionError(f"no API answered {method} {path}")

    def _is_ready(self, name: str) -> bool:
        process = self.stack.processes[name]
        assert not has_exited(process), self.stack.log(name).read_text()[-2_000:]
        try:
            return self._http.get(f"{self.url(name)}/readyz", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def close(self) -> None:
        self._http.close()
        self.stack.end()

    def _workers(self) -> int:
        return int(self.read("SELECT count(*) AS n FROM workers WHERE heartbeat_at > now() - interval '5 s'")[0][0])

    def read(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._database_url) as connection:
            return connection.execute(query.encode()).fetchall()


NAMES = ("api-a", "api-b", "io-1", "io-2", "cpu-1", "cpu-2")


@pytest.fixture
def fleet(tmp_path: Path, database_url: str, valkey_url: str) -> Iterator[Fleet]:
    made = Fleet(tmp_path, database_url, valkey_url, next_release.make(tmp_path / "next"))
    yield made
    made.close()


def _job(number: int) -> dict[str, Any]:
    calls = [
        ("calculate", {"expression": f"{number} + 1"}),
        ("wait", {"seconds": 1 + number % 60}),
        ("upgrade_book", {"text": "{{ $0.output.result }}"}),
        ("calculate", {"expression": "{{ $2.output.text }} * 2"}),
    ]
    return {"plan": {"calls": [{"tool_name": name, "arguments": arguments} for name, arguments in calls]}}


ASKING = {
    "plan": {
        "calls": [
            {"tool_name": "upgrade_choose", "arguments": {}},
            {"tool_name": "upgrade_book", "arguments": {"text": "$0.output.text"}},
        ]
    }
}


def _submitted(fleet: Fleet, body: Mapping[str, Any], key: str) -> str:
    response = fleet.ask("POST", "/jobs", json=body, headers={"Idempotency-Key": key})
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


def _chat(fleet: Fleet, number: int, said: str) -> None:
    body = {"tenant_id": "default", "channel": "api", "from": {"external_id": f"user {number}"}}
    body |= {"thread": f"thread {number}", "content": {"text": said}}
    response = fleet.ask("POST", "/messages/inbound?async_processing=true", json=body)
    assert response.status_code == 202, response.text


def test_a_rolling_upgrade_and_back_loses_nothing(fleet: Fleet, tmp_path: Path) -> None:
    for name in NAMES:
        fleet.start(name, is_next=False)
    jobs = [_submitted(fleet, _job(number), f"job-{number}") for number in range(JOBS // 2)]
    asking = [_submitted(fleet, ASKING, f"question-{number}") for number in range(QUESTIONS)]
    lines = [{"custom_id": f"line {n}", "body": _job(JOBS + n)} for n in range(LINES)]
    sent = fleet.ask(
        "POST",
        "/batches",
        content="\n".join(map(json.dumps, lines)).encode(),
        headers={"Content-Type": "application/jsonl"},
    )
    assert sent.status_code == 202, sent.text
    batch = sent.json()["id"]
    for number in range(CHATS):
        _chat(fleet, number, "What is 3 * 4?")
    heard: dict[str, list[Any]] = {}
    stopping = Event()

    def follow(job_id: str, name: str) -> None:
        with Client(fleet.url(name)) as client:
            heard[job_id] = list(client.stream(job_id))

    def keep_submitting() -> list[str]:
        """Submit the other half, and look at jobs, for as long as processes are replaced."""
        made: list[str] = []
        while len(made) < JOBS // 2 or not stopping.is_set():
            if len(made) < JOBS // 2:
                number = JOBS // 2 + len(made)
                made.append(_submitted(fleet, _job(number), f"job-{number}"))
            fleet.ask("GET", f"/jobs/{jobs[next(looks) % len(jobs)]}")
            stopping.wait(0.05)
        return made

    looks = itertools.count()
    with ThreadPoolExecutor(STREAMS + 1) as threads:
        following = [
            threads.submit(follow, job_id, ("api-a", "api-b")[n % 2]) for n, job_id in enumerate(asking[:STREAMS])
        ]
        submitting = threads.submit(keep_submitting)
        try:
            planned = fleet.migrate(tmp_path / "next", "--plan")
            assert planned.returncode == 0, planned.stderr
            assert planned.stdout.startswith("migrate tables to 0101"), planned.stdout
            done = fleet.migrate(tmp_path / "next")
            assert done.returncode == 0, done.stderr
            _roll(fleet, is_next=True)
            _answer(fleet, asking[: QUESTIONS // 2])
            for number in range(CHATS):
                _chat(fleet, number, "And 5 * 5?")
            _roll(fleet, is_next=False)
            _answer(fleet, asking[QUESTIONS // 2 :])
        finally:
            stopping.set()
        jobs += submitting.result(PATIENCE)
        for one in following:
            one.result(PATIENCE)

    eventually(lambda: _unfinished(fleet) == 0, PATIENCE, every=0.5, what="every job has ended")
    assert not [status for status in fleet.statuses if status >= 500], fleet.statuses
    ended = Counter(status for (status,) in fleet.read("SELECT status FROM jobs"))
    assert ended == {"completed": JOBS + QUESTIONS + LINES + 2 * CHATS}
    assert fleet.ask("GET", f"/batches/{batch}").json()["status"] == "completed"
    booked = Counter((tmp_path / "booked").read_text().splitlines())
    assert (len(booked), set(booked.values())) == (JOBS + QUESTIONS + LINES, {1}), "each has happened once"
    releases = {
        release
        for (release,) in fleet.read("SELECT DISTINCT data->>'release' FROM events WHERE kind = 'job_completed'")
    }
    assert releases == {None, "next"}, "both releases have ended jobs"
    for job_id in asking[:STREAMS]:
        told = [event.kind for event in heard[job_id] if event.id is not None]
        assert told.count("job_submitted") == told.count("job_completed") == 1, told


def _roll(fleet: Fleet, *, is_next: bool) -> None:
    for name in NAMES:
        fleet.replace(name, is_next=is_next)


def _answer(fleet: Fleet, jobs: list[str]) -> None:
    for job_id in jobs:
        (question,) = fleet.ask("GET", f"/jobs/{job_id}/elicitations").json()["items"]
        response = fleet.ask(
            "POST", f"/elicitations/{question['id']}", json={"action": "accept", "content": {"text": "this"}}
        )
        assert response.status_code == 200, response.text


def _unfinished(fleet: Fleet) -> int:
    return int(fleet.read("SELECT count(*) FROM jobs WHERE finished_at IS NULL")[0][0])


def test_a_contract_waits_until_no_process_needs_the_old_tables(
    fleet: Fleet, tmp_path: Path, database_url: str
) -> None:
    after = next_release.make(tmp_path / "after", with_contract=True)
    fleet.start("io-1", is_next=False)

    refused = fleet.migrate(after)

    assert refused.returncode == 2
    assert "needs older tables" in refused.stderr
    assert schema.current(database_url).tables == schema.HEAD

    fleet.stack.terminate("io-1")
    eventually(lambda: has_exited(fleet.stack.processes["io-1"]), PATIENCE, what="the last old process has gone")
    assert fleet.migrate(after).returncode == 0
    assert schema.current(database_url).tables == next_release.CONTRACT_HEAD
    again = fleet.migrate(None)
    assert again.returncode == 2
    assert "of a newer release" in again.stderr


def test_a_setting_that_the_next_release_has_removed_is_named(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.migrate(tmp_path / "next").returncode == 0
    removed = {next_release.REMOVED_SETTING: "1", **fleet.environment(is_next=True)}

    process = fleet.stack.run("api-a", "-m", "planq.api", env=removed)

    assert process.wait(60) == 2
    assert f"{next_release.REMOVED_SETTING}: removed in" in fleet.stack.log("api-a").read_text()

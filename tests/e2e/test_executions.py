"""Executions of agents as somebody with curl meets them: asked for, waited for, looked up, asked for again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from planq.deploy.local.valkey import EmbeddedValkey
from tests.e2e.test_main_job import broken_invariants
from tests.support.servers import TestPostgres
from tests.support.stack import Stack
from tests.support.waiting import eventually

HOLDER = {
    "name": "holder",
    "tools": ["fault_hold"],
    "actions": {"hold": {"prompt": 'call fault_hold with {"until": "{{ with.until }}"}'}},
}
SPEAKER = {
    "name": "speaker",
    "description": "You speak.",
    "actions": {"add": {"prompt": "calculate 40 + 2"}},
    "tools": ["calculate"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def database(postgres: TestPostgres) -> Iterator[str]:
    url = postgres.create_migrated()
    yield url
    postgres.drop(url)


@pytest.fixture(scope="module")
def url(database: str, valkey: EmbeddedValkey, folder: Path) -> Iterator[str]:
    """A planq that lets nobody wait for longer than a second."""
    env = {"PLANQ_TOOLS": "tests.faults.tools", "FAULT_FOLDER": str(folder), "PLANQ_MAX_WAIT_SECONDS": "1"}
    stack = Stack(folder, database, valkey.url, env=env)
    try:
        stack.start()
        for document in (HOLDER, SPEAKER):
            answer = httpx.put(f"{stack.url}/agents/{document['name']}", json=document, timeout=60)
            assert answer.status_code == 201, answer.text
        yield stack.url
    finally:
        stack.stop()


def asked(url: str, agent: str, *, way: str = "", key: str | None = None, **body: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return httpx.post(f"{url}/agents/{agent}/executions{way}", json=body, headers=headers, timeout=60)


def ended(url: str, place: str) -> Callable[[], Any]:
    """Ask for an execution as a client does that waits for it."""

    def look() -> Any:
        execution = httpx.get(f"{url}{place}", params={"wait": 5}, timeout=60).json()
        return execution if execution["finished_at"] else None

    return look


def problem(answer: httpx.Response, status: int) -> str:
    """Return what a refusal says."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    document = answer.json()
    assert document["status"] == status
    return str(document["detail"])


def test_what_takes_longer_than_the_wait_limit_is_looked_up_until_it_is_done(
    url: str, folder: Path, database: str
) -> None:
    body = {"action": "hold", "with": {"until": "one"}, "timeout_ms": 60_000}

    first = asked(url, "holder", key="one", **body)
    again = asked(url, "holder", key="one", **body)
    later = asked(url, "holder", way="/async", key="one", **body)

    execution = first.json()
    place = first.headers["location"]
    assert (first.status_code, place) == (202, f"/executions/agents/{execution['exec_id']}")
    assert "idempotency-replayed" not in first.headers
    for replay in (again, later):
        assert (replay.status_code, replay.json()["exec_id"]) == (202, execution["exec_id"])
        assert (replay.headers["idempotency-replayed"], replay.headers["location"]) == ("true", place)
    running = httpx.get(f"{url}{place}", timeout=60).json()
    assert running["status"] in ("planning", "executing")
    assert (running["output"], running["agent"]["name"]) == (None, "holder")

    (folder / "one").touch()
    done = eventually(ended(url, place), 60, what="the execution has ended")

    assert (done["status"], done["error"]) == ("completed", None)
    assert "attempt 1" in done["output"]["text"]
    replay = asked(url, "holder", key="one", **body)
    assert (replay.status_code, replay.json()) == (200, done)
    assert replay.headers["idempotency-replayed"] == "true"
    assert broken_invariants(database) == []


def test_an_execution_that_was_asked_for_to_be_done_later_is_answered_under_its_key(url: str) -> None:
    first = asked(url, "speaker", way="/async", key="two", action="add")
    assert first.status_code == 202
    done = eventually(ended(url, first.headers["location"]), 60, what="the execution has ended")

    now = asked(url, "speaker", key="two", action="add")
    later = asked(url, "speaker", way="/async", key="two", action="add")
    other = asked(url, "speaker", key="two", action="add", timeout_ms=1000)

    assert (now.status_code, now.json()) == (200, done)
    assert (later.status_code, later.json()) == (202, done)
    assert "42" in done["output"]["text"]
    assert "another request" in problem(other, 409)


def test_a_prompt_may_come_with_an_action(url: str) -> None:
    execution = asked(url, "speaker", action="add", prompt="and say it in words").json()

    done = eventually(ended(url, f"/executions/agents/{execution['exec_id']}"), 60, what="the execution has ended")
    assert (done["status"], done["action"]) == ("completed", "add")
    job = httpx.get(f"{url}/jobs/{execution['exec_id']}", timeout=60).json()
    assert (job["input"], job["agent"]["name"]) == ("and say it in words", "speaker")
    assert "42" in done["output"]["text"]


@pytest.mark.parametrize("way", ["", "/async"])
@pytest.mark.parametrize(
    ("agent", "body", "status", "told"),
    [
        ("speaker", {"prompt": "x", "timeout_ms": 300_001}, 422, "at most 300 s, found 300.001 s"),
        ("speaker", {"prompt": "x", "timeout_seconds": 301}, 422, "at most 300 s"),
        ("speaker", {"prompt": "x", "timeout_seconds": 0}, 422, "timeout_seconds"),
        ("speaker", {}, 422, "found neither"),
        ("speaker", {"action": "sing"}, 422, "it has add"),
        ("nobody", {"prompt": "x"}, 404, "agent 'nobody' does not exist"),
    ],
)
def test_what_cannot_be_executed_is_refused(
    url: str, way: str, agent: str, body: dict[str, Any], status: int, told: str
) -> None:
    assert told in problem(asked(url, agent, way=way, **body), status)


def test_what_is_no_execution_is_not_found(url: str) -> None:
    plain = httpx.post(f"{url}/jobs", json={"input": "calculate 1 + 1"}, timeout=60).json()["id"]

    for exec_id, told in ((plain, f"look at /jobs/{plain}"), (str(uuid4()), "there is no job"), ("none", "none")):
        assert told in problem(httpx.get(f"{url}/executions/agents/{exec_id}", timeout=60), 404)

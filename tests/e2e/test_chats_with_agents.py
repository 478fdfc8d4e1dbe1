"""Chats with agents through all processes: over HTTP while a worker dies, and by `planq chat`, also on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from planq.shared.client import Client
from tests.faults.scene import Scene, playing
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PATIENCE = 300.0
LEAF = {"name": "leaf", "description": "You note.", "tools": ["fault_note", "fault_hold"], "strategy": "plan"}
BOSS = {"name": "boss", "description": "You let others note.", "tools": ["ask_agent"], "strategy": "plan"}


def delegating(said: str) -> str:
    """What is said to the boss, so that it asks the leaf."""
    return f"call ask_agent with {json.dumps({'agent_name': 'leaf', 'input_text': said})}"


@pytest.fixture
def scene(tmp_path: Path, database_url: str, valkey_url: str) -> Iterator[Scene]:
    with playing(tmp_path / "scene", database_url, valkey_url) as running:
        running.api()
        for document in (LEAF, BOSS):
            kept = httpx.put(f"{running.stack.url}/agents/{document['name']}", json=document, timeout=60)
            assert kept.status_code == 201, kept.text
        yield running


def worker_of(scene: Scene) -> str:
    """Start a worker; returns its name once its tools are known."""
    name = scene.worker()
    eventually(lambda: scene.read("SELECT 1 FROM tools WHERE name = 'ask_agent'"), PATIENCE, what="tools are known")
    return name


def test_a_chat_whose_worker_is_killed_in_the_middle_of_a_child_has_one_answer_and_a_whole_stream(
    scene: Scene,
) -> None:
    worker = worker_of(scene)
    said = 'call fault_note with {"text": "a"}, then call fault_hold with {"until": "go"}'
    body = {"tenant_id": "default", "channel": "api", "from": {"external_id": "ann"}, "agent": "boss"}
    sent = httpx.post(
        f"{scene.stack.url}/messages/inbound?async_processing=true",
        json={**body, "content": {"text": delegating(said)}},
        timeout=60,
    )
    assert sent.status_code == 202, sent.text
    job_id, conversation = sent.json()["job_id"], sent.json()["conversation_id"]
    heard: list[Any] = []

    def follow() -> None:
        with Client(scene.stack.url) as client:
            heard.extend(client.stream(job_id, children=True))

    follower = Thread(target=follow)
    follower.start()
    scene.eventually_running("fault_hold", 1)
    scene.stack.kill(worker)
    (scene.folder / "go").touch()
    worker_of(scene)
    job, _ = scene.ends(UUID(job_id), PATIENCE)
    follower.join(PATIENCE)
    assert not follower.is_alive()

    assert job["status"] == "completed", job["error"]

    def rows() -> list[dict[str, Any]]:
        path = f"{scene.stack.url}/conversations/{conversation}/messages"
        found: list[dict[str, Any]] = httpx.get(path, timeout=60).json()["items"]
        return found[::-1]

    eventually(lambda: rows()[-1]["direction"] == "outbound", PATIENCE, what="the turn is written down")
    assert [(row["kind"], row["direction"]) for row in rows()] == [
        ("message", "inbound"),
        ("tool_call", "internal"),
        ("tool_response", "internal"),
        ("message", "outbound"),
    ]
    assert rows()[-1]["text"] == job["answer"]
    (child,) = scene.read("SELECT id, conversation_id FROM jobs WHERE agent_name = 'leaf'")
    assert str(child["conversation_id"]) == conversation
    told = [(event.data["job_id"], event.kind) for event in heard if event.id is not None]
    for whose, kind in ((job_id, "job_submitted"), (str(child["id"]), "job_submitted")):
        assert told.count((whose, kind)) == 1
    assert told.count((str(child["id"]), "job_completed")) == told.count((job_id, "job_completed")) == 1
    assert heard[-1].kind == "job"
    page = httpx.get(
        f"{scene.stack.url}/jobs/{job_id}/events",
        params={"children": "true", "limit": 1_000},
        headers={"Accept": "application/json"},
        timeout=60,
    ).json()
    known = [event["id"] for event in page["events"]]
    followed = [event.id for event in heard if event.id is not None]
    assert len(set(followed)) == len(followed), "nothing came twice"
    # The turn is written down after the end of its job, which is the end of the stream.
    late = {event["id"] for event in page["events"] if event["kind"] == "outbound_message"}
    assert [one for one in known if one not in late] == [one for one in followed if one not in late]
    scene.sound()


def command(scene: Scene, *options: str) -> tuple[list[str], dict[str, str]]:
    """Return the command `planq chat` and its environment."""
    env = {**os.environ, "PLANQ_URL": scene.stack.url, "TERM": "xterm-256color", "COLUMNS": "200", "PYTHONUTF8": "1"}
    return [sys.executable, "-m", "planq.deploy.cli.main", "chat", *options], env


def test_a_chat_at_the_command_line_tells_its_steps_asks_in_place_and_says_the_answers(
    scene: Scene, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        policy = json.dumps({"tool_policy": {"fault_note": "ask:asker"}})
        connection.execute("UPDATE tenants SET config = %s WHERE id = 'default'", [policy])
    worker_of(scene)
    noting = 'call fault_note with {"text": "a"}'
    program, env = command(scene, "--agent", "boss")
    typed = f"{delegating(noting)}\nperhaps\nyes\n\n{delegating(noting)}\nno\n/quit\n"
    piped = subprocess.run(
        program, input=typed, capture_output=True, text=True, env=env, cwd=ROOT, timeout=PATIENCE, check=False
    )

    assert piped.returncode == 0, piped.stderr
    assert "<a>" in piped.stdout
    assert "expected yes or no" in piped.stderr
    assert [word in piped.stderr for word in ("conversation ", "· ask_agent", "  · fault_note")] == [True] * 3
    talk = piped.stderr.split()[1]
    jobs = scene.read("SELECT status FROM jobs WHERE conversation_id = %s AND parent_job_id IS NULL", UUID(talk))
    assert [job["status"] for job in jobs] == ["completed", "completed"]
    asked = scene.read("SELECT status, answered_by FROM questions ORDER BY id")
    assert [(one["status"], one["answered_by"]) for one in asked] == [("accepted", "cli"), ("declined", "cli")]

    program, env = command(scene, "--conversation", talk, "--agent", "leaf")
    master, slave = pty.openpty()
    process = subprocess.Popen(
        program, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=ROOT, start_new_session=True
    )
    os.close(slave)
    shown = ""
    for wanted, entered in (("> ", f"{noting}\n"), ("yes or no? ", "yes\n"), ("> ", "\x04")):
        shown = _until(master, wanted)
        os.write(master, entered.encode())
    assert "<a>" in shown, "the answer stands before the next prompt"
    _until(master, None)
    os.close(master)
    assert process.wait(PATIENCE) == 0
    scene.sound()


def _until(master: int, wanted: str | None) -> str:
    """Read a terminal until it shows a text at its end, or to its own end."""
    shown = ""
    try:
        while piece := os.read(master, 65_536):
            shown += piece.decode()
            if wanted is not None and _plain(shown).endswith(wanted):
                break
    except OSError:
        pass  # Linux: the other end was closed
    return shown


def _plain(shown: str) -> str:
    """Return a text without its colours and movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)

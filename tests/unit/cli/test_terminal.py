"""The commands on a real terminal: nothing that a model, a tool or a form wrote steers it or hides there."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planq.api.cli.console import plain
from tests.support.recorder import Recorder
from tests.unit.cli.test_commands import job
from tests.unit.cli.test_inbox import question

ROOT = Path(__file__).parents[3]
ID = job("completed")["id"]
RAW = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2066\u2028"
ENTITIES = "&#27;]0;owned&#7;&#x9b;2J&#x202e;evil&#x2066;&#13;&#8;"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ANSWER = f"# Head {ENTITIES}\n\n| a | b |\n|---|---|\n| {ENTITIES} | x |\n\n- *{RAW}* `{ENTITIES}` [l]({RAW} 'x')\n"


def on_a_terminal(server: Recorder, *arguments: str, typed: str = "") -> str:
    """Run a command on a terminal of its own, type into it, and return all that it showed."""
    master, slave = pty.openpty()
    env = {**os.environ, "PLANQ_URL": server.url, "TERM": "xterm-256color", "COLUMNS": "200", "PYTHONUTF8": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "planq.deploy.cli.main", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
        cwd=ROOT,
        start_new_session=True,
    )
    os.close(slave)
    os.write(master, typed.encode())
    shown = b""
    try:
        while piece := os.read(master, 65_536):
            shown += piece
    except OSError:
        pass  # Linux: the other end was closed
    os.close(master)
    process.wait(60)
    return shown.decode().replace("\r\n", "\n")


def steers(shown: str) -> str:
    """Return what would act on a terminal, colours apart."""
    text = COLOURS.sub("", shown)
    return "".join(character for character in text if plain(character) != character)


@pytest.mark.parametrize("options", [(), ("--tree",)])
def test_a_hostile_job_is_shown_as_text(server: Recorder, options: tuple[str, ...]) -> None:
    step = {
        "index": 0,
        "tool_name": RAW,
        "kind": "tool",
        "status": "succeeded",
        "pool": "io",
        "attempt": 1,
        "arguments": {"x": RAW},
        "output": {"y": RAW},
        "error": None,
        "started_at": None,
        "ended_at": None,
        "ready_at": None,
        "children": [],
    }
    error = {"code": RAW, "message": RAW}
    server.answer(200, job("failed", answer=ANSWER, input=RAW, error=error, steps=[step], warnings=[error]))

    shown = on_a_terminal(server, "status", ID, *options)

    assert "evil" in shown
    assert steers(shown) == ""


def test_a_forms_default_is_shown_to_its_last_character_and_steers_nothing(server: Recorder) -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "title": RAW, "description": RAW, "default": RAW},
            "b": {"type": "string", "default": "plain"},
            "c": {"enum": [RAW, "y"], "default": RAW},
        },
        "required": ["a", "b", "c"],
    }
    server.answer_in_turn(
        f"/elicitations/{ID}", question(message=RAW, schema=schema), {"id": ID, "status": "accepted"}
    )

    shown = on_a_terminal(server, "answer", ID, typed="\n\n\n")

    assert steers(shown) == ""
    assert '["\\u001b]0;owned\\u0007\\u001b[2J\\u009b31m\\u202eevil\\u2066\\u2028"]' in shown
    assert "[plain]" in shown
    method, path, _, body = server.asked[-1]
    assert (method, path) == ("POST", f"/elicitations/{ID}")
    sent: Any = body["content"]
    assert sent == {"a": RAW, "b": "plain", "c": RAW}, "what was shown is what is sent"

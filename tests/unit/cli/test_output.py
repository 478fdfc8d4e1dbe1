"""`planq output` against an API that says what it is told: the bytes as they are, whole or not at all."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app
from tests.support.recorder import Recorder, recorder

ID = "01a1fc26-aa7a-7082-9f4d-2dd23711ed45"
PATH = f"/jobs/{ID}/steps/3/output"
BODY = b'{"text":"' + b"x" * 3_000_000 + '"é\x1b]0;owned\x07'.encode() + b"}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    with recorder() as running:
        monkeypatch.setenv("PLANQ_URL", running.url)
        monkeypatch.delenv("PLANQ_API_KEY", raising=False)
        yield running


def planq(*arguments: str) -> Result:
    return CliRunner().invoke(create_app(), arguments)


def test_the_bytes_go_to_standard_output_as_they_are(server: Recorder) -> None:
    server.answer_in_turn(PATH, BODY)

    result = planq("output", ID, "3")

    assert (result.exit_code, result.stdout_bytes) == (0, BODY)


def test_a_file_is_written_whole_and_replaces_an_earlier_one(server: Recorder, tmp_path: Path) -> None:
    server.answer_in_turn(PATH, BODY)
    target = tmp_path / "out.json"
    target.write_text("earlier")

    result = planq("output", ID, "3", "--to", str(target))

    assert (result.exit_code, target.read_bytes(), result.stdout_bytes) == (0, BODY, b"")
    assert f"{len(BODY)} bytes" in result.stderr
    assert list(tmp_path.iterdir()) == [target]


def test_a_refusal_is_told_and_writes_nothing(server: Recorder, tmp_path: Path) -> None:
    server.answer(404, {"status": 404, "title": "Not Found", "code": "not_found", "detail": "it is running"})
    target = tmp_path / "out.json"

    result = planq("output", ID, "3", "--to", str(target))

    assert (result.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "it is running" in result.stderr


def test_an_answer_that_breaks_off_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.json"
    target.write_text("earlier")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("PLANQ_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")

        thread = threading.Thread(target=serve)
        thread.start()
        result = planq("output", ID, "3", "--to", str(target))
        thread.join()

    assert (result.exit_code, target.read_text()) == (2, "earlier")
    assert list(tmp_path.iterdir()) == [target]


def test_a_place_that_cannot_be_written_is_told(server: Recorder, tmp_path: Path) -> None:
    server.answer_in_turn(PATH, BODY)

    result = planq("output", ID, "3", "--to", str(tmp_path / "none" / "out.json"))

    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_status_says_how_a_large_output_can_be_had(server: Recorder) -> None:
    step = {
        "index": 3,
        "tool_name": "dump",
        "status": "succeeded",
        "attempt": 1,
        "depends_on": [],
        "output": None,
        "output_ref": {"sha256": "ab", "bytes": 52_428_800, "href": PATH},
    }
    server.answer(200, {"id": ID, "status": "completed", "steps": [step], "answer": "done"})

    result = planq("status", ID)

    assert f"$3 has 50.0 MiB of output: planq output {ID} 3" in result.stdout
    assert json.loads(planq("status", ID, "--json").stdout)["steps"][0]["output_ref"]["href"] == PATH

"""A reader that goes away before the end is no failure of the command; a full disk is one that it reports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorder import Recorder
from tests.support.tiers import rare

ROOT = Path(__file__).parents[3]
ID = "019a0000-0000-7000-8000-000000000000"
EMPTY: Any = {"items": [], "next_cursor": None}
LONG = {"items": [{"name": "x" * 100, "description": "y" * 100, "effect": "read"}] * 2_000, "next_cursor": None}


def run(arguments: list[str], server: Recorder, *closed: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose named streams are pipes that have lost their reader."""
    reader, writer = os.pipe()
    os.close(reader)
    return _run(arguments, server, writer, closed)


def run_full(arguments: list[str], server: Recorder, *full: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose named streams are files on a full disk."""
    return _run(arguments, server, os.open("/dev/full", os.O_WRONLY), full)


def _run(
    arguments: list[str], server: Recorder, writer: int, redirected: Collection[str]
) -> subprocess.CompletedProcess[bytes]:
    names = ("stdout", "stderr")
    streams: Mapping[str, Any] = {name: writer if name in redirected else subprocess.PIPE for name in names}
    try:
        command = [sys.executable, "-m", "planq.deploy.cli.main", *arguments]
        environment = {**os.environ, "PLANQ_URL": server.url, "COLUMNS": "80"}
        environment.pop("PYTHONUNBUFFERED", None)  # only a buffer fails at the end of Python
        return subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False, **streams)
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--help"], EMPTY),
        rare(["--version"], EMPTY),
        rare(["status", "--help"], EMPTY),
        (["inbox", "--json"], EMPTY),
        (["tools", "--json"], LONG),
        (["output", ID, "0"], LONG),
        rare(["batch", "results", ID], LONG),
    ],
)
def test_a_closed_output_is_no_failure(server: Recorder, arguments: list[str], answer: Any) -> None:
    server.answer(200, answer)

    done = run(arguments, server, "stdout")

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [["stderr"], rare(["stdout", "stderr"])])
def test_a_closed_stream_of_errors_changes_no_exit_code(server: Recorder, closed: list[str]) -> None:
    server.answer(200, EMPTY)

    assert run(["inbox"], server, *closed).returncode == 0
    assert run(["no-such-command"], server, "stderr").returncode != 0
    server.answer(404, {"code": "not_found", "detail": "no such job", "status": 404})
    assert run(["status", ID], server, *closed).returncode == 1


def test_a_failure_stays_one_where_the_output_is_read(server: Recorder) -> None:
    server.answer(404, {"code": "not_found", "detail": "no such job", "status": 404})

    assert run(["status", ID], server).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--help"], EMPTY),
        rare(["--version"], EMPTY),
        (["inbox", "--json"], EMPTY),
        (["output", ID, "0"], LONG),
    ],
)
def test_an_output_that_cannot_be_written_is_reported(server: Recorder, arguments: list[str], answer: Any) -> None:
    server.answer(200, answer)

    done = run_full(arguments, server, "stdout")

    said = b"planq: cannot write the output: No space left on device; free some space, or write it elsewhere\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_errors_that_cannot_be_written_change_no_exit_code(server: Recorder) -> None:
    server.answer(200, EMPTY)
    assert run_full(["inbox"], server, "stderr").returncode == 0
    server.answer(404, {"code": "not_found", "detail": "no such job", "status": 404})
    assert run_full(["status", ID], server, "stderr").returncode == 1
    assert run_full(["status", ID], server, "stdout", "stderr").returncode == 1

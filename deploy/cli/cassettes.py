"""`planq record`, `planq replay`: run a command whose models are recorded, or reply as they were recorded."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from planq.shared.agentic.models.names import CASSETTE_PREFIX
from planq.shared.platform.errors import ExecutionFailed, Misconfigured

_Cassette = Annotated[
    Path, typer.Argument(metavar="FILE", help="The cassette: JSON lines, to be kept with the tests.")
]
_Command = Annotated[
    list[str],
    typer.Argument(metavar="-- COMMAND", help="The tests, or what starts planq: `pytest tests`, `planq up`."),
]


def record(cassette: _Cassette, command: _Command) -> None:
    """Run a command and record what its models are asked and reply.

    The command gets PLANQ_RECORD. Each planq that it starts adds to the file, and so does each `Cassette` of
    planq.testing. Credentials are removed. Delete the file first to drop what is not asked any more.
    """
    from planq.worker.models.cassette import Recorder

    path = cassette.absolute()
    if os.environ.get("PLANQ_MODEL", "").startswith(CASSETTE_PREFIX):
        raise Misconfigured(
            "expected a model to record, found a cassette in PLANQ_MODEL; set it to a model, as in openai:gpt-5"
        )
    Recorder(path)
    _become(command, {"PLANQ_RECORD": str(path)})


def replay(cassette: _Cassette, command: _Command) -> None:
    """Run a command whose models reply as they were recorded, without a network.

    The command gets PLANQ_MODEL=cassette:FILE. A request that is not in the file fails, and says how it differs from
    the closest one that is.
    """
    from planq.worker.models.cassette import read_cassette

    path = cassette.absolute()
    try:
        read_cassette(str(path))
    except ExecutionFailed as error:
        raise Misconfigured(f"{error.message}; planq record {cassette} -- COMMAND makes one") from error
    _become(command, {"PLANQ_MODEL": f"{CASSETTE_PREFIX}{path}"})


def _become(command: list[str], variables: dict[str, str]) -> NoReturn:
    """Run the command in the place of this process, so that signals and the exit code are its own."""
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise Misconfigured("expected a command after `--`, found none; as in: planq record FILE -- pytest")
    if shutil.which(words[0]) is None:
        raise Misconfigured(f"cannot run {words[0]!r}: there is no such command; name one that your shell finds")
    sys.stdout.flush()
    env = {name: value for name, value in os.environ.items() if name != "PLANQ_RECORD"}
    os.execvpe(words[0], words, {**env, **variables})  # noqa: S606 - becoming the command is the purpose

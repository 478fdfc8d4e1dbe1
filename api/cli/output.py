"""`planq output`: the output of one step, of any size, as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated
from uuid import UUID

import typer

from api.cli.connection import ApiKey, Url, connect
from api.cli.console import err, plain
from api.cli.outcome import reported
from shared.domain.errors import Misconfigured


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(output)


def output(
    job_id: Annotated[UUID, typer.Argument(metavar="ID", help="The job's id.")],
    index: Annotated[int, typer.Argument(metavar="STEP", min=0, help="The step's number, from 0.")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="Write it there; else to standard output.")
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Get the output of a step that succeeded, of any size, as JSON.

    On a terminal it is shown without what could steer the terminal.
    """
    with reported(as_json=False), connect(url, api_key) as client, client.output(str(job_id), index) as pieces:
        if to is not None:
            _write(to, pieces)
        elif sys.stdout.isatty():
            sys.stdout.write(plain(b"".join(pieces).decode("utf-8", "replace")) + "\n")
        else:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


def _write(target: Path, pieces: Iterable[bytes]) -> None:
    """Write a file that is there as a whole or not at all; an earlier one stays until then."""
    written = 0
    try:
        with NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            try:
                for piece in pieces:
                    written += file.write(piece)
                os.replace(file.name, target)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise Misconfigured(f"--to: {target} cannot be written ({error.strerror})") from error
    err.print(f"{written} bytes written to {target}", style="dim")

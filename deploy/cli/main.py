"""The command `planq`. Each group of commands is a module with `add_to(app)`; heavy imports happen inside commands.

`planq --help` must stay fast, and `planq up` small: nothing here imports Celery, FastAPI, SQLAlchemy or a model SDK.
"""

from __future__ import annotations

import errno
import io
import select
import sys
from typing import Annotated, NoReturn, TextIO

import typer

from planq.api.actions import commands as actions
from planq.api.agents.commands import agents
from planq.api.batches import commands as batches
from planq.api.catalogue import commands as catalogue
from planq.api.cli.console import discard, err, out
from planq.api.cli.outcome import CANNOT, NOT_OK, OK, exit_code, report
from planq.api.conversations.commands import chat, conversations
from planq.api.costs import commands as costs
from planq.api.elicitations import commands as elicitations
from planq.api.events import commands as events
from planq.api.insights import commands as insights
from planq.api.jobs.commands import artifacts, control, loops, status, submit
from planq.api.schedules import commands as schedules
from planq.api.webhooks import commands as webhooks
from planq.deploy.cli import (
    cassettes,
    channels,
    dead_letters,
    doctor,
    keys,
    knowledge,
    manual,
    models,
    processes,
    retention,
    secrets,
    telegram,
    tenants,
)
from planq.deploy.local import sample, up
from planq.shared.domain.errors import PlanqError

GROUPS = (
    up,
    submit,
    loops,
    status,
    artifacts,
    events,
    control,
    catalogue,
    agents,
    actions,
    elicitations,
    insights,
    schedules,
    batches,
    chat,
    conversations,
    webhooks,
    costs,
    knowledge,
    models,
    cassettes,
    doctor,
    dead_letters,
    retention,
    tenants,
    channels,
    telegram,
    keys,
    secrets,
    processes,
    sample,
    manual,
)


def show_version(wanted: bool) -> None:
    """Print `planq VERSION` and end, where that is wanted."""
    if wanted:
        from planq.shared.settings import VERSION

        out.print(f"planq {VERSION}")
        raise typer.Exit


def create_app() -> typer.Typer:
    """Return the command line application with every group of commands."""
    app = typer.Typer(
        name="planq",
        help="A durable backend for agentic jobs: plan, execute on Celery, answer.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich's help takes a third of the time that `planq --help` may take
    )
    app.callback()(planq)
    for group in GROUPS:
        group.add_to(app)
    return app


def planq(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """A durable backend for agentic jobs: plan, execute on Celery, answer."""


def main() -> None:
    """Run the command line; a deliberate error becomes one message and the exit code that `outcome` gives it.

    If the reader of the output goes away first, as `head` does, the command ends at once with exit code 0. If the
    output cannot be written (a full disk), it ends with exit code 2.
    """
    stdout = sys.stdout
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its escape, not a crash in the middle of an answer.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            create_app()()
        except PlanqError as error:
            report(error, as_json=False)
            sys.exit(exit_code(error))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # what cannot be written fails here, where it is reported, not at Python's end
    except BrokenPipeError:
        _end_without_reader()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _end_unwritten(error)
    except SystemExit:
        if sys.stdout is stdout:
            _closed_streams()
            raise
        _end_without_reader()  # typer replaces the streams when it catches a broken pipe


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write to a full or broken disk. Commands report those of the files that they name themselves."""


def _end_unwritten(error: OSError) -> NoReturn:
    """End the process with exit code 2 and say that the output is not whole. Drops what was not written."""
    discard(1)
    err.print(
        f"planq: cannot write the output: {error.strerror}; free some space, or write it elsewhere", style="red"
    )
    sys.exit(CANNOT)


def _end_without_reader() -> NoReturn:
    """End the process with exit code 0, or with 1 if only an error found no reader. Drops what was not written."""
    sys.exit(OK if sys.__stdout__ in _closed_streams() else NOT_OK)


def _closed_streams() -> list[TextIO]:
    """Return the output streams that have lost their reader, and drop what they still buffer.

    Python flushes both once more when it ends, and a flush that fails there changes the exit code to 120.
    """
    found: list[TextIO] = []
    for number, stream in enumerate((sys.__stdout__, sys.__stderr__), 1):
        closed = select.poll()
        closed.register(number, 0)
        if stream is not None and closed.poll(0):
            discard(number)
            found.append(stream)
    return found


if __name__ == "__main__":
    main()

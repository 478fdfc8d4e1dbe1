"""The command `planq`. Each group of commands is a module with `add_to(app)`; heavy imports happen inside commands.

`planq --help` must stay fast, and `planq up` small: nothing here imports Celery, FastAPI, SQLAlchemy or a model SDK.
"""

from __future__ import annotations

import sys

import typer

from shared.cli import processes, sample, up
from shared.cli.console import err
from shared.domain.errors import PlanqError

GROUPS = (up, processes, sample)


def create_app() -> typer.Typer:
    """Return the command line application with every group of commands."""
    app = typer.Typer(
        name="planq",
        help="A durable backend for agentic jobs: plan, execute on Celery, answer.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    for group in GROUPS:
        group.add_to(app)
    return app


def main() -> None:
    """Run the command line; a deliberate error becomes one message and exit code 1."""
    try:
        create_app()()
    except PlanqError as error:
        err.print(f"planq: {error.message}", style="red")
        sys.exit(1)


if __name__ == "__main__":
    main()

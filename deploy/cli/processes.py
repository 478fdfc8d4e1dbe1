"""`planq api`, `planq worker`, `planq migrate`, `planq flower`: planq's processes, one command each.

`planq up` starts its children with these commands and the container image does too, so that both run the same thing.
A command that becomes another program does so by exec: signals reach the program itself. Only workers and the API
have a parent (`planq.deploy.local.guard`), which ends them when they freeze.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from planq.api.cli.connection import database_settings
from planq.api.cli.console import out
from planq.deploy.local.child import bare_environment
from planq.deploy.local.flower import FLOWER_USER, flower_password
from planq.shared.kernel.states import Pool, Priority
from planq.shared.platform.launcher import PYTHON


def api() -> None:
    """Serve the HTTP API on PLANQ_HOST and PLANQ_PORT."""
    _become(_guarded("api", "-m", "planq.api"))


def worker(
    pool: Annotated[
        Pool,
        typer.Argument(parser=Pool, help="io: steps that wait, cpu: steps that compute; or what tools name, as gpu."),
    ],
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            "--concurrency",
            min=1,
            help="Steps at once; default from the settings for io and cpu, 1 for other pools.",
        ),
    ] = None,
    process: Annotated[
        bool, typer.Option("--process", help="Each step in its own process, as always in the pool cpu.")
    ] = False,
    priority: Annotated[
        Priority | None,
        typer.Option(help="Only jobs of this priority; a worker for bulk alone has a lower process priority."),
    ] = None,
    tools: Annotated[
        str | None, typer.Option(help="Modules with tools, separated by commas, in place of PLANQ_TOOLS.")
    ] = None,
    health: Annotated[
        bool,
        typer.Option(
            "--health", help="Only report by the exit code whether a worker of the pool lives on this host."
        ),
    ] = False,
) -> None:
    """Run a Celery worker of one worker pool."""
    if health:
        _become(["-m", "planq.worker", pool, "--health"])
    options = ["--slots", str(slots)] if slots else []
    options += ["--process"] if process else []
    options += [] if priority is None else ["--priority", priority]
    options += [] if tools is None else ["--tools", tools]
    _become(_guarded(pool, "-m", "planq.worker", pool, *options))


def migrate(
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be done, and change nothing.")] = False,
) -> None:
    """Bring the database to this release's schema; finds nothing to do the second time.

    Processes of the release before may run on: they keep their own SQL functions.
    """
    from planq.shared.schema import migrate

    url = database_settings().require_server()
    if plan:
        out.print("\n".join(migrate.plan(url)) or "nothing to do")
        return
    before, after = migrate.upgrade(url)
    if before == after:
        out.print(f"the schema is up to date ({after})")
    else:
        out.print(f"migrated the schema from {before or 'nothing'} to {after}")


def flower(
    host: Annotated[str, typer.Option(envvar="PLANQ_FLOWER_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="PLANQ_FLOWER_PORT", min=1, max=65_535, help="Port.")] = 5555,
) -> None:
    """Watch the broker with Flower: read only, with a password (user planq, PLANQ_FLOWER_PASSWORD)."""
    from planq.shared.settings.environment import load_settings

    settings = load_settings()
    data = Path(os.environ.get("PLANQ_DATA", ".planq"))
    # By environment, because command lines are public on a machine, and with nothing else of planq's in it. The plain
    # broker URL: Flower does not know the schemes of our hardened transport, and acknowledges nothing.
    env = {
        **bare_environment(),
        **{name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "MALLOC_", "FLOWER_"))},
        "CELERY_BROKER_URL": settings.require_broker(),
        "FLOWER_BASIC_AUTH": f"{FLOWER_USER}:{flower_password(data)}",
    }
    options = [
        f"--address={host}",
        f"--port={port}",
        "--read_only",
        "--max_tasks=10000",
        "--purge_offline_workers=60",
    ]
    _become(["-m", "planq.shared.broker.monitor", "--quiet", "flower", *options, "--logging=warning"], env)


def _guarded(kind: str, *arguments: str) -> list[str]:
    """Return the command that has a process watched; only Linux tells a guard what it needs to know."""
    return ["-m", "planq.deploy.local.guard", kind, *arguments] if sys.platform == "linux" else list(arguments)


def _become(arguments: list[str], env: Mapping[str, str] | None = None) -> NoReturn:
    sys.stdout.flush()
    os.execve(sys.executable, [*PYTHON, *arguments], dict(os.environ if env is None else env))  # noqa: S606 - becoming the program is the purpose

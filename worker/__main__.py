"""`python -m planq.worker io|cpu`: one worker process (and, for `cpu`, its children)."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import socket
import sys
import warnings
from typing import TYPE_CHECKING

from planq.shared.kernel.states import Pool, Priority
from planq.shared.platform.beats import Beats
from planq.shared.platform.errors import Misconfigured, PlanqError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planq.shared.platform.database import Row
    from planq.shared.settings.settings import Settings

_MISCONFIGURED = 2


def main() -> int:
    """Parse the command line and run; returns the exit code.

    It is 2, with a sentence on standard error, for what nothing but another configuration can put right, and 1 with
    one for all else that forbids a start.
    """
    parser = argparse.ArgumentParser(prog="planq worker", description="Run a planq worker.")
    parser.add_argument("pool", type=Pool, help="io waits (asyncio), cpu computes (processes), or one of your tools")
    parser.add_argument("--slots", "--concurrency", type=int, default=None, help="steps at once")
    parser.add_argument(
        "--process", action="store_true", help="each step in a process of its own, as in the pool cpu"
    )
    parser.add_argument(
        "--priority",
        type=Priority,
        choices=list(Priority),
        default=None,
        help="only jobs of this priority; one for bulk gives way to other processes",
    )
    parser.add_argument("--tools", default=None, help="modules with tools, in place of PLANQ_TOOLS")
    parser.add_argument("--health", action="store_true", help="only say, by the exit code, whether one lives here")
    parser.add_argument("--check", action="store_true", help="only say whether it could start as configured")
    given = parser.parse_args()
    beats = Beats.inherited()
    if given.tools is not None:
        os.environ["PLANQ_TOOLS"] = given.tools
    try:
        from planq.shared.platform.logs import configure_logging
        from planq.shared.platform.process_memory import bound_arenas
        from planq.shared.settings.environment import load_settings

        settings = load_settings()
        if given.health:
            return 0 if _is_alive(settings, given.pool) else 1
        if given.check:
            from planq.worker.container import Tools, check_settings
            from planq.worker.tools.services import NoDatabase

            check_settings(settings, given.pool)
            Tools.load(settings, NoDatabase(), NoDatabase())
            return 0
        configure_logging(settings.log_level, form=settings.log_format, secrets=settings.secrets)
        bound_arenas()
        gc.disable()  # imports create no garbage, but the collector costs a tenth of their time
        from planq.worker.main import run

        gc.enable()

        # Celery warns of root (containers run as nobody) and of a default of its next major version (set on purpose).
        warnings.filterwarnings("ignore", module="celery")
        return run(given.pool, given.slots, beats, has_processes=given.process, only=given.priority)
    except PlanqError as error:
        sys.stderr.write(f"planq worker {given.pool}: {error.message}\n")
        return _MISCONFIGURED if isinstance(error, Misconfigured) else 1


def _is_alive(settings: Settings, pool: Pool) -> bool:
    """Return whether a worker of this pool on this host holds a live lease; raises `DatabaseUnavailable`."""
    from planq.shared.kernel.store.worker_registry import WorkerRegistry
    from planq.shared.platform.database import Database

    async def live() -> Sequence[Row]:
        async with Database(
            settings.require_database(),
            has_pooler=settings.has_pooler,
            functions=settings.functions_schema,
            max_connections=1,
            timeout_seconds=5,
        ) as database:
            return await WorkerRegistry(database, settings.lease).live()

    host = f"@{socket.gethostname()}"
    return any(row["name"].endswith(host) and str(pool) in row["pools"] for row in asyncio.run(live()))


if __name__ == "__main__":
    sys.exit(main())

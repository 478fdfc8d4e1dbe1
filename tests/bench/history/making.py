"""`make bench ARGS=history`: fills a database with a long history, for whoever wants to look at one.

The database has planq's schema and nothing else (`planq migrate`); a million jobs take some ten minutes and 6 GB.
Without `--database` an embedded server keeps it in a folder, which `planq up --data` may be given then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from planq.deploy.local.postgres import EmbeddedPostgres
from planq.shared.schema.migrate import upgrade
from tests.bench.context import Context
from tests.bench.history import filling, patterns
from tests.support.servers import FUNCTIONS_FOUND


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the history that the command line asks for; returns 0."""
    given = _parser().parse_args(arguments)
    given.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    server = None
    try:
        if given.database is None:
            server = EmbeddedPostgres(given.folder / "postgres", options=FUNCTIONS_FOUND)
            server.start()
            given.database = server.url
            upgrade(given.database)
        with Context(given.folder) as context:
            with context.planq(io=1, env={**patterns.ENV, "DATABASE_URL": given.database}) as stack:
                shares = patterns.make(stack, given.database)
            size = filling.fill(given.database, shares, given.jobs, tenants=given.tenants)
    finally:
        if server is not None:
            server.stop()
    sys.stdout.write(f"{given.jobs} jobs of {given.tenants} tenants, {size / 1e9:.2f} GB\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(prog="make bench ARGS=history", description=(__doc__ or "").splitlines()[0])
    command.add_argument("--jobs", type=int, default=1_000_000, help="about so many jobs")
    command.add_argument("--tenants", type=int, default=filling.TENANTS, help="of so many tenants, few of them large")
    command.add_argument("--database", help="the URL of a database with planq's schema and nothing else")
    command.add_argument("--folder", type=Path, default=Path(".planq/history"), help="where servers keep their data")
    return command

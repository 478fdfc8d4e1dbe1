"""What this machine's disk and PostgreSQL can do at most, measured alone with pgbench, a client that costs little."""

from __future__ import annotations

import os
import subprocess
import tempfile
from time import monotonic

import psycopg

from planq.deploy.local.postgres import installed_binaries
from tests.bench.scaling.usage import Ceilings

_CLIENTS = 32
"""So many connections commit at once; PostgreSQL then flushes several commits together, as it does for planq."""

_TABLES = (
    "CREATE TABLE bench_bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz DEFAULT now())",
    "CREATE TABLE bench_wide (body text STORAGE plain)",
)
_ROW = "INSERT INTO bench_bare DEFAULT VALUES;\n"
_MUCH = "INSERT INTO bench_wide SELECT repeat('x', 8000) FROM generate_series(1, 100);\n"
_LSN = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8"


def measure(database_url: str, seconds: float) -> Ceilings:
    """Measure for twice `seconds`, in a database without planq's load, and leave no table behind."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for table in _TABLES:
            connection.execute(table)
        try:
            commits = _pgbench(database_url, _ROW, clients=_CLIENTS, seconds=seconds)
            before, begun = _number(connection), monotonic()
            _pgbench(database_url, _MUCH, clients=2, seconds=seconds)
            wal_bytes = (_number(connection) - before) / (monotonic() - begun)
        finally:
            connection.execute("DROP TABLE bench_bare, bench_wide")
            connection.execute("CHECKPOINT")
    return Ceilings(os.cpu_count() or 1, commits, wal_bytes)


def _number(connection: psycopg.Connection) -> float:
    row = connection.execute(_LSN).fetchone()
    assert row is not None
    return float(row[0])


def _pgbench(database_url: str, script: str, *, clients: int, seconds: float) -> float:
    """Repeat a script for so long and return how often a second it ran to its end."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [str(installed_binaries() / "pgbench"), "--no-vacuum", "--protocol=prepared"]
        command += [f"--client={clients}", "--jobs=1", f"--time={max(1, round(seconds))}", f"--file={file.name}"]
        done = subprocess.run([*command, database_url], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("tps = "):
            return float(line.split()[2])
    raise RuntimeError(f"pgbench measured nothing:\n{done.stderr}")

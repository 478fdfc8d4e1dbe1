"""The database's URL, as libpq reads it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

SCHEMA = "planq"
"""The default schema of planq's tables and functions (PLANQ_SCHEMA)."""

FOR_SPEED: Mapping[str, str] = {
    # The statements read few rows each; compiling one takes ten times as long as running it.
    "jit": "off",
    # A session keeps the plans that it made while the tables were all but empty (docs/decisions.md, D103): they must
    # find rows by an index even there, and planning a statement again for each call costs more than running it.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
}
"""Planner settings of planq's sessions; other values only cost time."""

RELIED_ON: Mapping[str, str] = {
    **FOR_SPEED,
    # psycopg reads no other form of times and intervals, and SQL that makes JSON writes what it is set to.
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "client_encoding": "UTF8",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    # The guards of the transition functions read what others committed while they waited for a lock.
    "default_transaction_isolation": "read committed",
}
"""Settings that planq's sessions need, whatever the server, database or role sets."""


def in_schema(database_url: str, schema: str) -> str:
    """Return a libpq URL whose sessions use `schema` and `RELIED_ON`; its other options stay."""
    place, _, query = database_url.partition("?")
    parameters = [parameter for parameter in query.split("&") if parameter]
    kept = [parameter for parameter in parameters if not parameter.startswith("options=")]
    # The last of two options counts, so ours follow those that are given.
    given = [parameter.removeprefix("options=") for parameter in parameters if parameter not in kept]
    ours = [_option(name, value) for name, value in {**RELIED_ON, "search_path": schema}.items()]
    return f"{place}?{'&'.join([*kept, 'options=' + '%20'.join([*given, *ours])])}"


def _option(name: str, value: str) -> str:
    escaped = value.replace(" ", "\\ ")
    return quote(f"-c{name}={escaped}", safe="")

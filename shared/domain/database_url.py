"""The address of the database, as libpq reads it."""

from __future__ import annotations

from urllib.parse import quote

SCHEMA = "planq"
"""Where planq's tables and functions stand unless PLANQ_SCHEMA says otherwise."""


def in_schema(database_url: str, schema: str) -> str:
    """Return a URL of libpq whose connections find and create everything in `schema`; its other options stay."""
    place, _, query = database_url.partition("?")
    option = quote(f"-csearch_path={schema}", safe="")
    parameters = [parameter for parameter in query.split("&") if parameter]
    kept = [parameter for parameter in parameters if not parameter.startswith("options=")]
    # The last of two options counts, so it follows those that are given.
    given = [parameter.removeprefix("options=") for parameter in parameters if parameter not in kept]
    return f"{place}?{'&'.join([*kept, 'options=' + '%20'.join([*given, option])])}"

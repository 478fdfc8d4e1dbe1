"""What a database's schema is, to be compared, and the statements that the models make their tables with.

`python -m tests.support.schema` prints these: the baseline, as long as nothing was released.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import psycopg
from sqlalchemy import create_mock_engine
from sqlalchemy.dialects import postgresql
from sqlmodel import SQLModel

from planq.shared.kernel.schema_version import functions_schema
from planq.shared.schema import tables  # noqa: F401  (fills the metadata)

_FUNCTIONS = functions_schema()

_CATALOGUE = {
    "columns": """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               a.attgenerated, a.attstorage, a.attcompression, pg_get_expr(d.adbin, d.adrelid), s.collname
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        LEFT JOIN pg_collation s ON s.oid = a.attcollation
        WHERE c.relnamespace = 'planq'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'c')""",
    "relations": """
        SELECT c.relname, c.relkind, c.relpersistence, c.reloptions, c.relrowsecurity
        FROM pg_class c WHERE c.relnamespace = 'planq'::regnamespace""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'planq'::regnamespace""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'planq'",
    "sequences": """
        SELECT sequencename, data_type::text, start_value, increment_by, cycle FROM pg_sequences
        WHERE schemaname = 'planq'""",
    "triggers": "SELECT tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
    "types": f"""
        SELECT typname, typtype FROM pg_type
        WHERE typnamespace IN ('planq'::regnamespace, to_regnamespace('{_FUNCTIONS}')) AND typcategory <> 'A'""",
    "functions": f"""
        SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace IN ('planq'::regnamespace, to_regnamespace('{_FUNCTIONS}')) AND prokind <> 'a'""",
    "extensions": "SELECT extname FROM pg_extension",
}


def catalogue(url: str) -> Mapping[str, Sequence[tuple[Any, ...]]]:
    """Return what a database has in its schema, in an order of its own, Alembic's table left out."""
    with psycopg.connect(url) as connection:
        found = {kind: connection.execute(query.encode()).fetchall() for kind, query in _CATALOGUE.items()}
    return {
        kind: sorted((row for row in rows if "alembic_version" not in str(row[0])), key=str)
        for kind, rows in found.items()
    }


def tables_ddl() -> str:
    """Return the statements that make the tables of the models."""
    statements: list[str] = []

    def keep(statement: Any, *_: Any, **__: Any) -> None:
        text = str(statement.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
        statements.append("\n".join(line.rstrip() for line in text.strip().splitlines()).replace("\t", "    "))

    SQLModel.metadata.create_all(create_mock_engine("postgresql+psycopg://", keep), checkfirst=False)
    # SQLAlchemy keeps a table's indexes in a set, so their order is another one each time.
    runs = groupby(statements, key=lambda statement: " INDEX " in statement.partition("(")[0])
    ordered = chain.from_iterable(sorted(run) if are_indexes else list(run) for are_indexes, run in runs)
    return ";\n\n".join(ordered) + ";\n"


if __name__ == "__main__":
    sys.stdout.write(tables_ddl())

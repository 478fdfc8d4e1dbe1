"""What a database's schema is, to be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from planq.shared.kernel.schema_version import functions_schema

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

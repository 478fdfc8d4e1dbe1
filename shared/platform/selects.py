"""Selects, built by functions, as texts that `Database` runs like the statements of SQL files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import EllipsisType
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Select, bindparam
from sqlalchemy.dialects.postgresql.psycopg import PGCompiler_psycopg, PGDialect_psycopg

Build: TypeAlias = Callable[..., Select[Any]]
Given: TypeAlias = bool | EllipsisType | None
"""What decides on a statement's text: None, a flag, or an ellipsis for other values."""

NAMED: dict[str, Build] = {}


class _Compiler(PGCompiler_psycopg):
    """Writes a select's own values as SQL, so that partial indexes match; parameters stay."""

    def visit_bindparam(self, bindparam: Any, *more: Any, **options: Any) -> Any:
        if bindparam.unique:  # as SQLAlchemy makes one of a value
            options["literal_binds"] = True
        return super().visit_bindparam(bindparam, *more, **options)  # type: ignore[no-untyped-call]


class _Dialect(PGDialect_psycopg):
    statement_compiler = _Compiler
    supports_statement_cache = True


_DIALECT = _Dialect()  # type: ignore[no-untyped-call]


def named(build: Build) -> Build:
    """Register a select by its function's name.

    Parameters are None for a filter that is not set, flags as they are, and otherwise marks to compare columns with.
    """
    if NAMED.setdefault(build.__name__, build) is not build:
        raise ValueError(f"two selects are called {build.__name__!r}; give one of them another name")
    return build


def text_of(name: str, values: Mapping[str, Any]) -> bytes:
    """Return the cached statement of this name for these parameters; raises `KeyError`."""
    return _text_for(name, tuple((key, _given(value)) for key, value in values.items()))


def _given(value: Any) -> Given:
    return value if value is None or isinstance(value, bool) else ...


@cache
def _text_for(name: str, given: tuple[tuple[str, Given], ...]) -> bytes:
    select = NAMED[name](**{key: bindparam(key) if one is ... else one for key, one in given})
    return str(select.compile(dialect=_DIALECT)).encode()


def newest_first(rows: Select[Any], id: Any, below: UUID | int | None, limit: int) -> Select[Any]:
    """Return a page of rows, the greatest key first, below `below` if set."""
    return (rows if below is None else rows.where(id < below)).order_by(id.desc()).limit(limit)


def where_given(rows: Select[Any], filters: Mapping[Any, Any]) -> Select[Any]:
    """Return the rows whose columns have these values; None is any."""
    return rows.where(*(column == value for column, value in filters.items() if value is not None))

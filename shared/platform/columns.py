"""Short functions for columns, constraints and indexes of the tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Boolean, Column, DateTime, Index, Integer, Text, text
from sqlalchemy.dialects.postgresql import DOMAIN, JSON, JSONB
from sqlalchemy.sql.operators import OperatorClass
from sqlalchemy.types import UserDefinedType
from sqlmodel import Field, SQLModel

SQLModel.metadata.naming_convention = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class _TextDomain(DOMAIN):
    """A domain over texts, compared like these."""

    operator_classes = OperatorClass.STRING


def enum_column(domain: str, values: Iterable[StrEnum], *, default: str | None = None, nullable: bool = False) -> Any:
    """Return a text of a domain that allows exactly these values.

    PostgreSQL checks a domain where the column is set, but parses check constraints for every changed row.
    """
    allowed = ", ".join(f"'{value}'" for value in values)
    kind = _TextDomain(domain, Text(), check=f"VALUE IN ({allowed})", constraint_name=f"ck_{domain}")
    server_default = None if default is None else text(f"'{default}'")
    return Field(sa_column=Column(kind, nullable=nullable, server_default=server_default))


def pattern_column(domain: str, pattern: re.Pattern[str]) -> Any:
    """Return a text of a domain that matches a whole pattern."""
    kind = _TextDomain(domain, Text(), check=f"VALUE ~ '^{pattern.pattern}$'", constraint_name=f"ck_{domain}")
    return Field(sa_column=Column(kind, nullable=False))


def partial_index(column: str, where: str, *, include: Sequence[str] = ()) -> Index:
    """Return an index over the rows of a condition, including other columns for index-only counts."""
    return Index(None, column, postgresql_where=text(where), postgresql_include=list(include))


def json_column(*, nullable: bool = True) -> Any:
    return Field(default=None, sa_column=Column(JSON, nullable=nullable))


def parts_column() -> Any:
    """Return a column for an input's parts, searched by `sha256` (`parts_index`)."""
    return Field(default=None, sa_column=Column(JSONB, nullable=True))


def parts_index(table: str) -> Index:
    """Return the index that finds the rows with a payload among their parts."""
    return Index(
        f"ix_{table}_parts",
        "parts",
        postgresql_using="gin",
        postgresql_ops={"parts": "jsonb_path_ops"},
        postgresql_where=text("parts IS NOT NULL"),
    )


def time_column(*, nullable: bool = True, now: bool = False) -> Any:
    """Return a timestamp; with `now` the insert's time is the default."""
    default = text("now()") if now else None
    return Field(default=None, sa_column=Column(DateTime(timezone=True), nullable=nullable, server_default=default))


def int_column(default: int = 0) -> Any:
    return Field(default=default, sa_column=Column(Integer, nullable=False, server_default=text(str(default))))


def bigint_column() -> Any:
    return Field(default=0, sa_column=Column(BigInteger, nullable=False, server_default=text("0")))


def flag_column(*, default: bool = False) -> Any:
    server_default = text(str(default).lower())
    return Field(default=default, sa_column=Column(Boolean, nullable=False, server_default=server_default))


def ints_column(*, nullable: bool = False) -> Any:
    server_default = None if nullable else text("'{}'")
    return Field(sa_column=Column(ARRAY(Integer), nullable=nullable, server_default=server_default))


def texts_column(*, nullable: bool = True, empty: bool = False) -> Any:
    """Return a list of texts; with `empty` its default is empty."""
    return Field(sa_column=Column(ARRAY(Text), nullable=nullable, server_default=text("'{}'") if empty else None))


def text_column(default: str | None = None, *, nullable: bool = False, primary_key: bool = False) -> Any:
    server_default = None if default is None else text(f"'{default}'")
    return Field(sa_column=Column(Text, nullable=nullable, server_default=server_default, primary_key=primary_key))


class _Xid8(UserDefinedType[Any]):
    """PostgreSQL's 64-bit transaction id, which SQLAlchemy does not know."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


def xid_column(*, primary_key: bool = False, default: str = "pg_current_xact_id()") -> Any:
    """Return the inserting transaction's id, never used twice; no rows appear below `pg_snapshot_xmin()`."""
    given = text(default)
    return Field(
        default=None, sa_column=Column(_Xid8(), nullable=False, server_default=given, primary_key=primary_key)
    )

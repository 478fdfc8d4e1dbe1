"""Rows as records, and records for SQL: what users wrote comes through as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.kernel.states import Effect, Pool
from planq.shared.platform.database import record, sql_fields, storable_fields
from planq.shared.platform.values.encoding import JsonText

ODD = {"\ud800": "\udfff", "\0": [10**40, 1e400, {"b": None, "a": -0.0}]}


@dataclass(frozen=True, slots=True)
class Row:
    id: UUID
    pool: Pool
    effect: Effect
    named: Mapping[str, Any]
    anything: Any
    text: str
    left: timedelta | None = None
    plan: Mapping[str, Any] | JsonText | None = None


def test_what_users_wrote_is_not_looked_at_and_the_rest_has_its_type() -> None:
    row = {
        "id": str(UUID(int=7)),
        "pool": "gpu",
        "effect": "read",
        "named": ODD,
        "anything": ODD,
        "text": "\ud800",
    }
    found = record(Row, {**row, "left": 1.5, "unknown": ODD})
    assert found == Row(UUID(int=7), Pool("gpu"), Effect.READ, ODD, ODD, "\ud800", timedelta(seconds=1.5))
    assert found.anything is ODD
    assert list(found.named) == list(ODD)


def test_what_is_no_such_record_is_refused() -> None:
    with pytest.raises(ValueError, match="pool"):
        record(Row, {"id": UUID(int=7), "pool": "no pool!", "effect": "read", "named": {}, "anything": 1, "text": ""})


def test_sql_is_given_what_users_wrote_as_texts_and_nothing_that_is_none() -> None:
    written = {"\ud800": "\0", "n": [10**40, {"b": None, "a": 1}]}
    row = Row(UUID(int=7), Pool.IO, Effect.READ, written, [written], "a\0", plan=JsonText(b'{"calls":[]}'))
    found = sql_fields(row)
    assert [json.loads(found.pop(name)) for name in ("named", "anything")] == [written, [written]]
    assert storable_fields(row)["text"] == "a\ufffd"
    assert found == {
        "id": str(UUID(int=7)),
        "pool": "io",
        "effect": "read",
        "text": "a\0",
        "plan": '{"calls":[]}',
    }

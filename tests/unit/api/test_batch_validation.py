"""What a line of a batch says, before anything is looked up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planq.api.batches.validation import read_line

DEFAULTS = {"priority": "bulk", "model": "offline", "user": "ann"}


def read(sent: Any, **defaults: Any) -> Any:
    return read_line(7, sent if isinstance(sent, str) else json.dumps(sent), {**DEFAULTS, **defaults})


def test_a_field_of_the_lines_own_replaces_a_default_unless_it_is_null() -> None:
    line = read({"custom_id": "a", "body": {"input": "x", "user": "bob", "priority": None, "model": None}})

    assert (line.number, line.custom_id, line.error) == (7, "a", None)
    assert (line.request.input, line.request.user) == ("x", "bob")
    assert (line.request.priority, line.request.model) == ("bulk", "offline")


@pytest.mark.parametrize(
    ("sent", "custom_id", "code", "field"),
    [
        ("{", None, "malformed_json", None),
        ('{"custom_id": "a", "body": {"input": NaN}}', None, "malformed_json", None),
        ('{"custom_id": "a", "custom_id": "b", "body": {}}', None, "invalid_request", None),
        ('{"custom_id": "a", "body": {"metadata": {"n": 100000000000000000000}}}', None, "invalid_request", None),
        ("null", None, "invalid_request", ""),
        ([], None, "invalid_request", ""),
        ({"custom_id": "a"}, "a", "invalid_request", "body"),
        ({"custom_id": 1, "body": {}}, None, "invalid_request", "custom_id"),
        ({"custom_id": "", "body": {}}, None, "invalid_request", "custom_id"),
        ({"custom_id": "a" * 513, "body": {}}, None, "invalid_request", "custom_id"),
        ({"custom_id": "a\u0000", "body": {}}, None, "invalid_request", "custom_id"),
        ({"custom_id": "a", "body": {}, "method": "GET"}, "a", "invalid_request", "method"),
        ({"custom_id": "a", "body": {}, "more": 1}, "a", "invalid_request", "more"),
        ({"custom_id": "a", "body": {"limits": {"max_rounds": 0}}}, "a", "invalid_request", "body.limits.max_rounds"),
        ({"custom_id": "a", "body": {"colour": "red"}}, "a", "invalid_request", "body.colour"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(sent: Any, custom_id: str | None, code: str, field: str | None) -> None:
    line = read(sent)

    assert (line.request, line.custom_id, line.error.code) == (None, custom_id, code)
    if field is not None:
        assert [one["field"] for one in line.error.details["errors"]] == [field]


def test_lines_of_openai_are_read() -> None:
    line = read({"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"input": "x"}})

    assert (line.error, line.request.input) == (None, "x")

"""Artifact wrappers, types and fingerprints (docs/decisions.md, D22); details are in the conformance cases."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given

from planq.shared.agentic.references.schema_paths import PathSchemas, declared_type, follow
from planq.shared.agentic.results.artifacts import (
    build_tool_response,
    detect_wrapper,
    extract_artifact_id,
    extract_skill_id,
    fingerprint,
    infer_type,
    provenance,
    tool_response_schema,
)
from planq.shared.agentic.schema.schemas import check_schema, violations
from tests.model.shapes import build_parts, extract_execution_id, parse_tool_response
from tests.unit.agentic.strategies import json_values

ARTIFACT_SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "root": {"$ref": "#/$defs/Node"}},
    "required": ["title"],
    "$defs": {"Node": {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}}},
}


@dataclass(frozen=True)
class Maker:
    context_id: str = "c"
    request_id: str = "r"
    trace_id: str = "t"
    user_id: str = "u"
    tool_name: str = "write_report"
    skill_id: str | None = "writing"


def test_a_built_response_fits_its_schema_and_says_who_made_it_when() -> None:
    when = datetime(2025, 1, 15, 11, 30, tzinfo=timezone(timedelta(hours=1)))
    schema = tool_response_schema(ARTIFACT_SCHEMA)
    response = build_tool_response("id-1", {"title": "T", "root": {"n": 1, "next": {"n": 2}}}, Maker(), when)

    check_schema(schema, "x")
    assert violations(schema, response) == []
    assert response["_metadata"] == {**vars(Maker()), "executed_at": "2025-01-15T10:30:00Z"}
    assert extract_skill_id(response) == "writing"
    assert provenance(Maker(), when, skill_name="Writing")["skill_name"] == "Writing"
    assert "skill_name" not in provenance(Maker(skill_id=None), when, skill_name="Writing"), "of no skill"
    assert "skill_id" not in build_tool_response("id-1", {"title": "T"}, Maker(skill_id=None), when)["_metadata"]
    assert detect_wrapper(response) is not None
    broken = build_tool_response("id-1", {"title": "T", "root": {"next": {"n": "no"}}}, Maker(), when)
    assert [item.pointer for item in violations(schema, broken)] == ["/artifact/root/next/n"]


def test_references_see_into_the_artifact() -> None:
    schema = tool_response_schema(ARTIFACT_SCHEMA)
    found = follow(schema, ["artifact", "root", "next", "next", "n"], first_must_be_declared=True)
    assert isinstance(found, PathSchemas)
    assert declared_type(schema, found.schemas) == "integer"


def test_the_execution_id_is_that_of_the_metadata_first() -> None:
    assert extract_execution_id({"mcp_execution_id": "m", "_metadata": {"execution_id": "e"}}) == "e"
    assert extract_execution_id({"mcp_execution_id": "m", "_metadata": {}}) == "m"
    assert extract_execution_id({"_metadata": "x"}) is None


@pytest.mark.parametrize(
    ("artifact", "schema", "type_"),
    [
        ([{"a": 1}, {"a": 2}], None, "table"),
        ([], None, None),
        ([{"a": 1}, 2], None, None),
        ({}, {"properties": {"fields": {"type": "array"}}}, "form"),
        ({"artifact_type": "list"}, {"type": "array", "items": {"type": "object"}}, "list"),
        ({"artifact": {"x-artifact-type": "form"}}, None, "form"),
        ({"x-artifact-type": 5}, {"x-artifact-type": ""}, None),
        ("text", {"properties": []}, None),
    ],
)
def test_a_type_is_tagged_or_seen_in_the_shape(artifact: Any, schema: Any, type_: str | None) -> None:
    assert infer_type(artifact, schema) == type_


def test_a_fingerprint_ignores_the_order_of_keys_only() -> None:
    assert fingerprint("t", {"a": 1, "b": [1, 2]}) == fingerprint("t", {"b": [1, 2], "a": 1})
    assert fingerprint("t", {"b": [1, 2]}) != fingerprint("t", {"b": [2, 1]})


@given(json_values, json_values)
def test_any_content_is_read_without_failing(content: Any, schema: Any) -> None:
    extract_skill_id(content)
    extract_artifact_id(content)
    infer_type(content, schema)
    fingerprint("t", content)
    assert (parse_tool_response(content) is None) or detect_wrapper(content) is not None
    assert (build_parts(content) is None) == (not isinstance(content, dict))


@pytest.mark.parametrize(
    ("tag", "kind"), [("Chart", "chart"), ("TABLE", "table"), ("CLI", None), ("Dashboard", "Dashboard")]
)
def test_a_type_is_matched_in_whatever_case(tag: str, kind: str | None) -> None:
    assert infer_type({"x-artifact-type": tag}, None) == kind
    assert infer_type({"some": "data"}, {"x-artifact-type": tag}) == kind

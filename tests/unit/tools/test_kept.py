"""What the tools that keep something do before they keep it: names, merge patches, texts that can be stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from planq.shared.platform.errors import InvalidArguments
from planq.shared.platform.values.merge_patch import merge_patch
from planq.worker.tools.builtin.moments import check_size, moment_title, storable_json
from tests.unit.agentic.strategies import json_values


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_rfc_7396(target: Any, patch: Any, expected: Any) -> None:
    """Appendix A."""
    before = repr((target, patch))

    assert merge_patch(target, patch) == expected
    assert repr((target, patch)) == before, "nothing that was given is changed"


@given(json_values, json_values)
def test_a_patch_that_is_applied_again_changes_nothing(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)

    assert merge_patch(once, patch) == once


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dream-api-gateway-ml-pipeline-convergence", "Api Gateway Ml Pipeline Convergence"),
        ("Dream-event_driven", "Event Driven"),
        ("API gateway for NASA", "API Gateway For NASA"),
        ("a follow-up with Ana's team", "A Follow-up With Ana's Team"),
        ("dream-", "Untitled"),
        ("  ", "Untitled"),
        ("été", "Été"),
        ("nul\x00", "Nul\ufffd"),
    ],
)
def test_a_name_for_people(name: str, expected: str) -> None:
    assert moment_title(name) == expected


def test_texts_that_no_database_holds_are_replaced_everywhere() -> None:
    odd = {"a\x00": ["\ud800", {"b": "fine", "c": 1.5, "d": None}], "e": True}

    assert storable_json(odd) == {"a\ufffd": ["\ufffd" * 3, {"b": "fine", "c": 1.5, "d": None}], "e": True}


def test_a_size_is_that_of_its_json() -> None:
    check_size("x", {"a": "é"}, 11)
    with pytest.raises(InvalidArguments, match="x: expected at most 10 bytes of JSON, found 11"):
        check_size("x", {"a": "é"}, 10)
    with pytest.raises(InvalidArguments, match="expected at most 4"):
        check_size("x", "\ud800\ud800", 4)

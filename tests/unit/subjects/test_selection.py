"""Which jobs a filter selects by their metadata: values fit as those of JSON, texts also as what they write."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.subjects.jobs.selection import JobFilter

STORED = {"n": 5, "x": 0.5, "on": True, "none": None, "text": "5", "list": [1, "a"], "deep": {"a": [True]}}


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ({"n": 5, "text": "5"}, True),
        ({"n": 5.0}, True),
        ({"n": "5"}, True),  # as terminals and forms write it
        ({"n": "5.0"}, True),
        ({"n": " 5"}, False),
        ({"n": "6"}, False),
        ({"n": "five"}, False),
        ({"n": True}, False),
        ({"text": 5}, False),
        ({"text": "5.0"}, False),
        ({"x": "5e-1"}, True),
        ({"on": True}, True),
        ({"on": "true"}, True),
        ({"on": "True"}, False),
        ({"on": 1}, False),
        ({"on": "1"}, False),
        ({"none": None}, True),
        ({"none": "null"}, True),
        ({"none": ""}, False),
        ({"missing": None}, False),
        ({"list": [1.0, "a"]}, True),
        ({"list": [True, "a"]}, False),
        ({"list": '[1, "a"]'}, False),
        ({"deep": {"a": [True]}}, True),
        ({"deep": {"a": [1]}}, False),
        ({"n": "9" * 5_000}, False),
        ({"n": "[" * 3_000}, False),
        ({}, True),
    ],
)
def test_metadata_fit_as_values_of_json(wanted: dict[str, Any], fits: bool) -> None:
    assert JobFilter(metadata=wanted).has_metadata(STORED) is fits


def test_what_has_no_metadata_fits_only_a_filter_without_them() -> None:
    assert not JobFilter(metadata={"n": 5}).has_metadata(None)
    assert JobFilter().has_metadata(None)

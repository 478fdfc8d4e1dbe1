"""The filter of jobs: what an address and a form say, and what is kept of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from planq.api.intake.filters import filter_of
from planq.api.jobs.page.listing import FORM_NAMES, address_of, chips_of, fields_given, filter_given
from planq.shared.platform.errors import InvalidRequest
from planq.shared.subjects.actions.store import FILTERS

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def test_ages_and_times_bound_when_a_job_was_submitted_whichever_is_closer() -> None:
    given = {"older_than_seconds": 3600, "newer_than_seconds": 7200, "created_before": "2026-11-28T13:00:00+02:00"}
    found = filter_of({**given, "created_after": "2026-11-28T09:00", "words": None}, NOW)
    assert found.made_before == datetime(2026, 11, 28, 11, tzinfo=UTC)
    assert found.made_after == datetime(2026, 11, 28, 10, tzinfo=UTC)
    assert FILTERS.validate_python(FILTERS.dump_python(found, mode="json", exclude_none=True)) == found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"created_after": "yesterday"}, "created_after: expected a time such as"),
        ({"created_before": "0001-01-01T00:00:00+14:00"}, "created_before: expected a time such as"),
        ({"metadata": "[1]"}, "metadata: expected a JSON object"),
        ({"metadata": "{"}, "metadata: "),
        ({"batch_id": "none"}, "batch_id: "),
        ({"min_cost_usd": float("nan")}, "min_cost_usd: "),
        ({"priority": "none"}, "priority: "),
    ],
    ids=str,
)
def test_what_is_no_filter_is_told_by_its_name(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        filter_of(given, NOW)
    assert refused.value.message.startswith(told)


def test_a_form_says_hours_and_its_address_leads_back_to_it() -> None:
    fields = fields_given({"newer_than_hours": " 2 ", "agent": "host", "metadata": '{"a": 1}', "other": "x"}, "q")
    assert set(fields) == {*FORM_NAMES, "q"}
    assert filter_given(fields) == {"agent": "host", "metadata": '{"a": 1}', "newer_than_seconds": 7200.0}
    assert filter_of(filter_given(fields), NOW).metadata == {"a": 1}
    with pytest.raises(InvalidRequest, match="min_cost_usd: expected a number"):
        filter_given({"min_cost_usd": "much"})
    chips = {one["text"]: one["href"] for one in chips_of("/jobs", fields)}
    assert list(chips) == ["agent host", 'metadata {"a": 1}', "younger than 2 h"]
    assert chips["agent host"] == address_of("/jobs", {**fields, "agent": ""})
    assert "agent" not in chips["agent host"]

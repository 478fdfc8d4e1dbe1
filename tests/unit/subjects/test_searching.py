"""What somebody's id may be of."""

from __future__ import annotations

from uuid import UUID

import pytest

from planq.shared.kernel.ids import (
    PLAN,
    RESPOND,
    StepRef,
    attempt_id,
    group_id,
)
from planq.shared.subjects.jobs.operations import NamedId, named_id

JOB = UUID("01a1fd0d-d36a-7c9b-abe5-077a4bbcb541")
STEP = StepRef(JOB, 1, 12)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f" {JOB} ", NamedId(JOB)),
        (str(JOB).upper(), NamedId(JOB)),
        (JOB.hex, NamedId(JOB)),
        (attempt_id(StepRef(JOB, 0, PLAN), 2), NamedId(JOB)),
        (attempt_id(StepRef(JOB, 0, RESPOND), 1), NamedId(JOB)),
        (attempt_id(STEP, 3), NamedId(JOB, 12)),
        (attempt_id(STEP, 1, 3), NamedId(JOB, 12)),
        (group_id(attempt_id(STEP, 3)), NamedId(JOB, 12)),
        (f"{JOB}/12", NamedId(JOB, 12)),
        (f"{JOB}/x", None),
        (f"{JOB}.r0.s", None),
        ("order-7", None),
        ("", None),
    ],
)
def test_a_text_names_an_id_and_perhaps_a_step(text: str, named: NamedId | None) -> None:
    assert named_id(text) == named

"""What may be resumed: a child job that has ended belongs to its parent."""

from __future__ import annotations

from uuid import UUID

import pytest

from api.recovery import doubts_about
from shared.domain.errors import Conflict

PARENT, CHILD = UUID(int=1), UUID(int=2)


def test_a_child_that_has_ended_is_refused_and_told_which_job_to_resume() -> None:
    job = {"id": CHILD, "parent_job_id": PARENT, "status": "failed", "failed_steps": 1}
    with pytest.raises(Conflict, match=f"it is a child of job {PARENT}.*Resume that job") as refused:
        doubts_about(job, [], repeat_unsafe=False)
    assert refused.value.details == {"job_status": "failed"}
    assert doubts_about({**job, "parent_job_id": None}, [], repeat_unsafe=False) == []

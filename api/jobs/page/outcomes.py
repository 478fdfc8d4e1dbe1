"""What came of a job: its answer where that is JSON, and the first thing that went wrong."""

from __future__ import annotations

import json
from typing import Any

from planq.api.page.trees import table_of
from planq.shared.kernel.states import StepStatus


def structured(job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer of a job where it is JSON, with the table that it is; None where it is text for people.

    A large output is shown by its preview.
    """
    value, text = job["output"], job["answer"] or job["preview"] or ""
    if value is None and text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
    return None if value is None else {"value": value, "table": table_of(value)}


def first_error(job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first thing that went wrong, with its step where it has one: what a person looks for first."""
    for step in job["steps"]:
        if step["error"] is not None and step["status"] == StepStatus.FAILED:
            return {**step["error"], "step": step}
    for one in job["rounds"]:
        for defect in one["plan_errors"] or ():
            return {"code": "plan_invalid", "message": str(defect.get("error", defect)), "step": None}
    return None if job["error"] is None else {**job["error"], "step": None}

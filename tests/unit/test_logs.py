"""Lines of the log: one JSON object each, whatever is logged."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.telemetry.logs import JsonLines

JOB = UUID("01900000-0000-7000-8000-000000000001")


def line_of(level: int, message: str, *args: Any, exc_info: Any = None, **extra: Any) -> dict[str, Any]:
    record = logging.getLogger("planq.test").makeRecord(
        "planq.test", level, "file.py", 1, message, args, exc_info, extra=extra or None
    )
    text = JsonLines().format(record)
    assert "\n" not in text
    line: dict[str, Any] = json.loads(text)
    return line


def test_a_line_has_the_event_its_fields_and_the_time() -> None:
    line = line_of(logging.WARNING, "step_%s", "failed", job=JOB, step=3, name_of="a\nb")
    at = datetime.fromisoformat(line.pop("timestamp"))
    assert line == {
        "event": "step_failed",
        "logger": "planq.test",
        "level": "warning",
        "job": str(JOB),
        "step": 3,
        "name_of": "a\nb",
    }
    assert at.tzinfo is not None
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=1)


def test_an_exception_brings_its_traceback() -> None:
    with pytest.raises(ValueError, match="odd") as caught:
        raise ValueError("odd")
    line = line_of(logging.ERROR, "defect", exc_info=caught._excinfo)
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: odd")

"""Lines of the log: one JSON object each, whatever is logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from planq.shared.platform import logs
from planq.shared.platform.logs import JsonLines, attempt_fields, configure_logging, is_brought

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


Written = Callable[[], list[Any]]


@contextmanager
def configured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """Log as a process does; yields a function that returns what was written since its last call, as JSON."""
    root = logging.getLogger()
    before = root.handlers, root.level
    monkeypatch.setattr(logs, "_brought", set())
    configure_logging("INFO", form="json")
    try:
        yield lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    finally:
        root.handlers, root.level = before


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """`with log() as written`: pytest sets up logging of its own between a fixture and its test."""
    return lambda: configured(capsys, monkeypatch)


LIBRARIES = ("httpx", "celery.worker", "asyncio", "concurrent.futures")


def test_loggers_of_users_write_at_the_configured_level_and_those_of_libraries_their_warnings(
    log: Callable[[], Any],
) -> None:
    with log() as written:
        logging.getLogger("shop.billing").info("charged", extra={"order": 7})
        logging.getLogger("shop.billing").debug("thought")
        for library in LIBRARIES:
            logging.getLogger(library).info("https://user:secret@host/")
            logging.getLogger(library).warning("careful")
            logging.getLogger(library).setLevel(logging.NOTSET)
        told = [(line["logger"], line["event"], line.get("order")) for line in written()]

    assert told == [("shop.billing", "charged", 7), *((library, "careful", None) for library in LIBRARIES)]


def test_an_installed_package_that_a_user_brings_is_no_library(log: Callable[[], Any]) -> None:
    """`httpx` stands for one: what matters is where it is installed."""
    with log() as written:
        is_brought("httpx.tools")
        logging.getLogger("httpx").info("hello")
        assert [line["event"] for line in written()] == ["hello"]


def test_a_line_names_the_attempt_that_it_was_written_in(log: Callable[[], Any]) -> None:
    fields = {"job": "j", "step": 2, "tenant": "acme", "tool": "charge"}
    with log() as written:
        token = attempt_fields.set(fields)
        try:
            logging.getLogger("shop").info("charged")
            logging.getLogger("planq.engine").info("step_failed", extra={"step": 3})
        finally:
            attempt_fields.reset(token)
        logging.getLogger("shop").info("idle")
        inside, own, outside = written()

    assert {name: inside[name] for name in fields} == fields
    assert (own["step"], own["tenant"]) == (3, "acme")
    assert not set(fields) & set(outside)

"""Structured logs over the standard library: JSON lines, or short lines for people.

Secrets of the settings, credentials and queries of addresses are hidden. Libraries only log warnings, because they
log full addresses; users' modules log everything. Lines during an attempt have its fields.
"""

from __future__ import annotations

import json
import logging
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import structlog

from planq.shared.platform.redact import Redaction

OURS = "planq"
"""The logger above all of planq's; others are libraries."""

redaction = Redaction()
"""The secrets hidden in this process; learned ones are added."""

attempt_fields: ContextVar[Mapping[str, Any]] = ContextVar("planq_attempt_fields")
"""Fields of lines during an attempt, also in threads of its tool: job, step, tenant, tool."""

_brought: set[str] = set()
"""Packages of users, wherever they are installed."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Fields of every record; others came as `extra`."""


_encode = json.JSONEncoder(default=str).encode


_NO_FIELDS: Mapping[str, Any] = {}


class _Lines(logging.Filter):
    """Adds the attempt's fields, and drops libraries' records below a warning."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING and _is_of_library(record.name):
            # From now on it is not even made.
            logging.getLogger(record.name).setLevel(logging.WARNING)
            return False
        for name, value in attempt_fields.get(_NO_FIELDS).items():
            record.__dict__.setdefault(name, value)
        return True


def _is_of_library(logger: str) -> bool:
    """Return whether a logger is named like a module of the standard library or an installed package."""
    top = logger.partition(".")[0]
    if top == OURS or top in _brought:
        return False
    if top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and file.startswith(tuple(_INSTALLED))


_INSTALLED = {sysconfig.get_path(name) for name in ("purelib", "platlib")}


class JsonLines(logging.Formatter):
    """One JSON object per line: event, logger, level, fields, timestamp, traceback; secrets in JSON spelling."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        at = datetime.fromtimestamp(record.created, UTC)
        line["timestamp"] = f"{at.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return redaction(_encode(line))


class _PlainFormatter(structlog.stdlib.ProcessorFormatter):
    def format(self, record: logging.LogRecord) -> str:
        return redaction(super().format(record))


def configure_logging(level: str, *, form: Literal["json", "text"], secrets: Iterable[str] = ()) -> None:
    """Log to standard error in one format; call once, from an entry point.

    `extra={…}` becomes keys of the line. `level` is for planq and users' modules. `secrets` are hidden.
    """
    hide(secrets)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else _for_people())
    handler.addFilter(_Lines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


def is_brought(module: str) -> None:
    """Treat the package of a module as a user's: its loggers write like planq's."""
    _brought.add(module.partition(".")[0])


def hide(secrets: Iterable[str]) -> None:
    """Hide these texts in all later lines."""
    redaction.add(form for secret in secrets for form in (secret, json.dumps(secret)[1:-1]))


def _for_people() -> logging.Formatter:
    chain: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    return _PlainFormatter(
        foreign_pre_chain=chain,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )

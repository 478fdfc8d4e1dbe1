"""Structured logs over the standard library: JSON lines for machines, or short lines for people.

Nothing that is logged shows a secret of the settings, or the credentials or the query of an address. Libraries say
what they do in words of their own, addresses with keys among them: of those only warnings are written. Loggers of the
modules that users bring are none of a library's, and every line that is written while an attempt runs says which.
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
"""The logger above all of ours; every other one is a library's."""

redaction = Redaction()
"""What no line of this process shows; a secret that is learned later is added."""

attempt_fields: ContextVar[Mapping[str, Any]] = ContextVar("planq_attempt_fields")
"""What lines say that are written while an attempt runs, in a thread of its tool, too: job, step, tenant, tool."""

_brought: set[str] = set()
"""Packages that users bring, which are none of the libraries wherever they are installed."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest was given as `extra`."""


_encode = json.JSONEncoder(default=str).encode


_NO_FIELDS: Mapping[str, Any] = {}


class _Lines(logging.Filter):
    """Gives a record the fields of its attempt, and keeps back what libraries say below a warning."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING and _is_of_library(record.name):
            # From now on it is not even made.
            logging.getLogger(record.name).setLevel(logging.WARNING)
            return False
        for name, value in attempt_fields.get(_NO_FIELDS).items():
            record.__dict__.setdefault(name, value)
        return True


def _is_of_library(logger: str) -> bool:
    """Say whether a logger is called as a module of the standard library, or of an installed package, is."""
    top = logger.partition(".")[0]
    if top == OURS or top in _brought:
        return False
    if top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and file.startswith(tuple(_INSTALLED))


_INSTALLED = {sysconfig.get_path(name) for name in ("purelib", "platlib")}


class JsonLines(logging.Formatter):
    """One JSON object a line: event, logger, level, the given fields, timestamp, and an exception's traceback.

    A secret is looked for in its spelling as a JSON string.
    """

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
    """Short lines."""

    def format(self, record: logging.LogRecord) -> str:
        return redaction(super().format(record))


def configure_logging(level: str, *, form: Literal["json", "text"], secrets: Iterable[str] = ()) -> None:
    """Send every log record of the process to standard error in one format; call once, from an entry point.

    Fields given as `extra={…}` become keys of the line. `level` is for what planq and the modules of users log; of
    libraries there are warnings and errors. No line shows one of `secrets`.
    """
    hide(secrets)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else _for_people())
    handler.addFilter(_Lines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


def is_brought(module: str) -> None:
    """Take the package of a module for one that users bring: its loggers write as planq's do."""
    _brought.add(module.partition(".")[0])


def hide(secrets: Iterable[str]) -> None:
    """Let no line that is logged from now on show one of these."""
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

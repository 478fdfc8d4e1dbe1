"""Structured logs over the standard library: JSON lines for machines, or short lines for people.

Nothing that is logged shows a secret of the settings, or the credentials or the query of an address. Libraries say
what they do in words of their own, addresses with keys among them: of those only warnings are written.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import structlog

from planq.shared.domain.redact import Redaction

OURS = "planq"
"""The logger above all of ours; every other one is a library's."""

redaction = Redaction()
"""What no line of this process shows; a secret that is learned later is added."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest was given as `extra`."""


_encode = json.JSONEncoder(default=str).encode


class JsonLines(logging.Formatter):
    """One JSON object a line: event, logger, level, the given fields, timestamp, and an exception's traceback.

    A secret is looked for in its spelling as a JSON string.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without its end."""
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


class _ForPeople(structlog.stdlib.ProcessorFormatter):
    """Short lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without its end."""
        return redaction(super().format(record))


def configure_logging(level: str, *, as_json: bool, secrets: Iterable[str] = ()) -> None:
    """Send every log record of the process to standard error in one format; call once, from an entry point.

    Fields given as `extra={…}` become keys of the line. `level` is for what planq itself logs; of libraries there are
    warnings and errors. No line shows one of `secrets`.
    """
    hide(secrets)
    formatter = JsonLines() if as_json else _for_people()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    logging.getLogger(OURS).setLevel(level.upper())


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
    return _ForPeople(
        foreign_pre_chain=chain,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )

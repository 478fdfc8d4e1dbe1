"""Structured logs over the standard library: JSON lines for machines, or short lines for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import structlog

_QUIET = (
    *("alembic", "amqp", "asyncio", "httpx", "httpcore", "kombu"),
    *("celery.app.trace", "celery.redirected", "celery.worker.strategy"),
)


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest was given as `extra`."""


_encode = json.JSONEncoder(default=str).encode


class JsonLines(logging.Formatter):
    """One JSON object a line: event, logger, level, the given fields, timestamp, and an exception's traceback."""

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
        return _encode(line)


def configure_logging(level: str, *, as_json: bool) -> None:
    """Send every log record of the process to standard error in one format; call once, from an entry point.

    Fields given as `extra={…}` become keys of the line.
    """
    formatter = JsonLines() if as_json else _for_people()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _for_people() -> logging.Formatter:
    chain: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=chain,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )

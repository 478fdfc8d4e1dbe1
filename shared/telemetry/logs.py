"""Structured logs over the standard library: JSON lines for machines, or short lines for people."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_QUIET = (
    *("alembic", "amqp", "asyncio", "httpx", "httpcore", "kombu"),
    *("celery.app.trace", "celery.redirected", "celery.worker.strategy"),
)


def configure_logging(level: str, *, as_json: bool) -> None:
    """Send every log record of the process to standard error in one format; call once, from an entry point.

    Fields given as `extra={…}` become keys of the line.
    """
    shared: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = (
        structlog.processors.JSONRenderer(default=str)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)

"""`python -m planq.deploy.local.freezes`: notes that a loop froze, as one JSON document on standard input tells.

Before it stands a line with the id of the worker. Then come empty lines for as long as the loop stands still and its
process could go on. While they come its lease is held: whoever judges its loss shall know of the freeze. The worker
itself counts by its own beats, and does nothing that its lease does not allow.

A guard starts it (`planq.deploy.local.guard`), and stops the frozen process until this has ended. The whole stack is
for the operator, in the log. What tenants may see is the place: modules, lines and functions, no path of this
machine.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from math import inf
from pathlib import PurePath
from time import monotonic, sleep
from typing import Any, NamedTuple
from uuid import UUID

from planq.shared.domain.errors import capped

_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
_NAME = re.compile(r"planq:(?P<job>[0-9a-f-]{36}):(?P<round>\d+):(?P<index>-?\d+):(?P<attempt>\d+)")
"""The name that `planq.shared.domain.frames` gives to the frame of an attempt."""

_log = logging.getLogger("planq.guard")

_NOTING_SECONDS = 3.0
_AGAIN_SECONDS = 0.5
"""The guard waits for five seconds."""

_HOLDS_IN_LEASE = 4
_PIECE_BYTES = 65_536

_MOST_STACK_CHARS = 20_000
_MOST_FRAMES = 6
_MOST_FRAME_CHARS = 120

_MACHINERY = (
    "planq.shared.domain.frames:",
    "planq.worker.attempts.",
    "planq.worker.engine.",
    "planq.worker.tools.function:",
    "planq.worker.tools.threads:",
    "planq.worker.celery.",
)
"""What calls a tool: below it a frame tells nothing of the one that froze."""

_UNKNOWN = "not known: the process wrote no stack"


class StackFrame(NamedTuple):
    """One frame of a stack."""

    file: str
    line: int
    function: str


def main() -> int:
    """Note what standard input tells; without a document on it, nothing. Returns 1 where that failed."""
    import psycopg

    # All of it is loaded while there is time: a guard starts this before it is needed.
    from planq.shared.environment import load_settings
    from planq.shared.store.freezes.recorder import hold_lease, note_freeze
    from planq.shared.telemetry.logs import configure_logging

    settings = load_settings()
    database_url = settings.require_database()
    configure_logging(settings.log_level, form=settings.log_format, secrets=settings.secrets)
    every, held_at, piped = settings.lease_seconds / _HOLDS_IN_LEASE, -inf, b""
    while piece := os.read(sys.stdin.fileno(), _PIECE_BYTES):
        piped += piece
        worker, ended, document = piped.partition(b"\n")
        if ended and not document.strip() and worker.strip(b"0") and monotonic() - held_at >= every:
            held_at = monotonic()
            with contextlib.suppress(psycopg.Error):
                hold_lease(database_url, worker.decode(), settings.lease_seconds)
    _, _, document = piped.partition(b"\n")
    if not document.strip():
        return 0
    noted = json.loads(document)
    row = row_of(noted, [os.getcwd(), *sys.path])
    _log.critical(
        "froze",
        extra={
            "frozen": noted["process"],  # a record of logging has a `process` already
            "late_seconds": noted["late_seconds"],
            "place": row["place"],
            "job": None if row["job_id"] is None else str(row["job_id"]),
            "step": row["index"],
            "attempt": row["attempt"],
            "stack": capped(noted["stack"], _MOST_STACK_CHARS),
        },
    )
    until = monotonic() + _NOTING_SECONDS
    while True:
        try:
            note_freeze(database_url, row)
            return 0
        except psycopg.Error as error:  # a database that is just restarted is there again in a moment
            if monotonic() >= until:
                _log.error("freeze_not_noted", extra={"cause": str(error)})
                return 1
            _log.warning("freeze_not_noted_yet", extra={"cause": str(error)})
        sleep(_AGAIN_SECONDS)


def current_stack(dump: str) -> list[StackFrame]:
    """Return the frames of the current thread, the innermost first, of what `faulthandler` wrote of all threads."""
    frames: list[StackFrame] = []
    is_current = False
    for line in dump.splitlines():
        if found := _FRAME.fullmatch(line):
            if is_current:
                frames.append(StackFrame(found["file"], int(found["line"]), found["function"]))
        elif line:
            is_current = line.startswith("Current thread ")
    return frames


def row_of(noted: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Return what is stored of a freeze that a guard tells of; modules are found below the folders of `path`."""
    frames = current_stack(noted["stack"])
    named = next((found for frame in frames if (found := _NAME.fullmatch(frame.function))), None)
    worker = noted["worker"]
    return {
        "id": worker if worker.strip("0") else None,
        "process": noted["process"],
        "kind": noted["kind"],
        "place": told_place(frames, path),
        "job_id": None if named is None else UUID(named["job"]),
        **{name: None if named is None else int(named[name]) for name in ("round", "index", "attempt")},
    }


def told_place(frames: Sequence[StackFrame], path: Sequence[str]) -> str:
    """Return where a loop stood, the innermost frame first: `module:line function < …`."""
    places = [f"{_module(frame.file, path)}:{frame.line} {frame.function}" for frame in frames]
    own = next((places[:n] for n, frame in enumerate(places) if frame.startswith(_MACHINERY)), places) or places
    if len(own) > _MOST_FRAMES:
        own = [*own[: _MOST_FRAMES - 2], *own[-2:]] if own is not places else own[:_MOST_FRAMES]
    return " < ".join(frame[:_MOST_FRAME_CHARS] for frame in own) or _UNKNOWN


def _module(file: str, path: Sequence[str]) -> str:
    """Return the module of a file: its way below the folder of `path` that is nearest to it, else its name alone."""
    parts = PurePath(file).parts
    below = max((len(folder) for one in path if parts[: len(folder := PurePath(one).parts)] == folder), default=0)
    named = PurePath(*(parts[below:] if below else parts[-1:])).with_suffix("")
    return ".".join(named.parts).removesuffix(".__init__")


if __name__ == "__main__":
    sys.exit(main())

"""Frames of server-sent events (WHATWG HTML, section 9.2): what a stream of events consists of.

A frame with an `id` is an event of the log: a client that comes back names the last one it has seen. All others have
none, and are made anew for who comes back.
"""

from __future__ import annotations

import orjson

from planq.api.http.exchange import on_one_line
from planq.shared.platform.database import shown_time
from planq.shared.subjects.events.store import LoggedEvent
from planq.shared.subjects.streams.contract import TextPiece

MEDIA_TYPE = "text/event-stream"

HEARTBEAT = b":\n\n"
"""A comment, so that proxies keep the connection and a client that has gone is noticed."""


HELD_BACK = b": held back by an open transaction in the database server; events come once it has ended\n\n"
"""A comment that names no session: that is for operators (`planq doctor`, `planq_events_held_seconds`)."""


def retry_frame(milliseconds: int) -> bytes:
    return b"retry: %d\n\n" % milliseconds


def event_frame(event: LoggedEvent) -> bytes:
    name = " ".join(event.kind.split())
    return b"id: %b\nevent: %b\n%b" % (
        str(event.position).encode(),
        name.encode(),
        _data(orjson.dumps(event_document(event))),
    )


def event_document(event: LoggedEvent) -> dict[str, object]:
    """Return an event of the log as clients get it."""
    return {
        "job_id": event.job_id,
        "sequence": event.position.sequence,
        "kind": event.kind,
        "data": None if event.data is None else orjson.Fragment(event.data.encode()),
        "created_at": shown_time(event.created_at),
    }


def text_frame(piece: TextPiece) -> bytes:
    """Return a piece of what a model says; `offset` is how many characters of its attempt and try come before."""
    shown = {
        "job_id": piece.epoch.job_id,
        "stage": piece.stage,
        "attempt": piece.epoch.attempt,
        "try": piece.epoch.number,
        "offset": piece.start,
        "text": piece.text,
    }
    return b"event: text\n" + _data(orjson.dumps(shown))


def job_frame(document: bytes) -> bytes:
    """Return a job that has ended, as JSON that `GET /jobs/{id}` shows, too."""
    return b"event: job\n" + _data(document)


def _data(body: bytes) -> bytes:
    # Of JSON that is kept as it came, a line break is white space: in strings it is always an escape.
    return b"data: %b\n\n" % on_one_line(body.replace(b"\r", b" ").replace(b"\n", b" "))

"""Events as they come, over connections that break: what is asked next, and what was heard, without I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planq.shared.client.requests import at, output_path
from planq.shared.client.wire import ApiRequest, Json
from planq.shared.platform.errors import TooLarge, Unavailable
from planq.shared.platform.values.event_stream import FrameReader

SILENT_SECONDS = 45.0
"""A stream of events has a heartbeat every 15 s; after three of them its connection leads nowhere."""

PAUSE_SECONDS = 1.0
_AWAY_SECONDS = 120.0
"""How long a stream that was heard is asked for again while nothing answers: a restart of the API takes seconds."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """What is told of a job: an event of its log, with its position as `id`; `text`, a piece of what its model says;
    or at last `job`, the job as it has ended. The last two have no `id`."""

    id: str | None
    kind: str
    data: Any


class StreamPatience:
    """How long a stream is asked for again: `seconds` where nothing was heard yet, later two minutes at least."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._heard_at = clock()

    def heard(self) -> None:
        """Note that the API has answered."""
        self._heard_at, self._seconds = self._clock(), max(self._seconds, _AWAY_SECONDS)

    def broke(self, failure: Unavailable) -> float:
        """Return how long to wait before the next request; raises the failure where nobody was heard for too long."""
        if self._clock() - self._heard_at >= self._seconds:
            raise failure
        return PAUSE_SECONDS


class EventFollower:
    """The events of a job, each once, and at last the job; `is_over` then."""

    def __init__(self, job_id: str, patience: StreamPatience, *, with_children: bool) -> None:
        self._path = f"{at('jobs', job_id)}/events"
        self._params: Json = {"children": "true"} if with_children else {}
        self._reader = FrameReader()
        self.patience = patience
        self.is_over = False

    def request(self) -> ApiRequest:
        """Return the request for what is to come; a reply without content (204) says that only the job is left."""
        self._reader = FrameReader()  # what broke off comes again
        return ApiRequest("GET", self._path, params=dict(self._params), is_repeatable=True)

    def read(self, chunk: bytes) -> Iterator[StreamEvent]:
        """Yield the events that a piece of the stream completes."""
        self.patience.heard()
        for frame in self._reader.feed(chunk):
            if frame.id is not None:
                self._params["after"] = frame.id
            if frame.event == "job":
                self.is_over = True
            yield StreamEvent(frame.id, frame.event, json.loads(frame.data))

    def ended(self, job: Json) -> StreamEvent:
        self.is_over = True
        return StreamEvent(None, "job", job)


class Download:
    """The lines of a batch, each once, also where the connection breaks and they are asked for anew."""

    def __init__(self, path: str, params: Mapping[str, Any], patience: StreamPatience) -> None:
        self._path = path
        self._params = params
        self._rest = b""
        self._seen: set[str] = set()
        self.patience = patience

    def request(self) -> ApiRequest:
        self._rest = b""
        return ApiRequest("GET", self._path, params=self._params, is_repeatable=True)

    def read(self, chunk: bytes) -> Iterator[Json]:
        """Yield the lines that a piece completes and that did not come before."""
        self.patience.heard()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for text in filter(None, lines):
            line = json.loads(text)
            # A result has an id; an error has the number of its line, for it may have no `custom_id`.
            name = str(line.get("id") or line.get("line"))
            if name not in self._seen:
                self._seen.add(name)
                yield line


class OutputDownload:
    """A step's whole output of at most `max_bytes`, read in pieces; read again where the connection breaks."""

    def __init__(self, job_id: str, step: int, max_bytes: int, patience: StreamPatience, size: int = 0) -> None:
        """Raise `TooLarge` where its `size` is known and too large."""
        self._place = f"${step} of job {job_id}"
        self._path = output_path(job_id, step)
        self._max_bytes = max_bytes
        self._body = bytearray()
        self.patience = patience
        self._check(size)

    def request(self) -> ApiRequest:
        self._body.clear()
        return ApiRequest("GET", self._path, is_repeatable=True)

    def read(self, chunk: bytes) -> None:
        """Add a piece; raises `TooLarge`."""
        self.patience.heard()
        self._check(len(self._body) + len(chunk))
        self._body += chunk

    def value(self) -> Any:
        """Return the output, once all of it was read."""
        try:
            return json.loads(self._body)
        except (ValueError, RecursionError) as failure:
            raise Unavailable(f"expected the output of {self._place} as JSON; found {failure}") from failure

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise TooLarge(
                f"the output of {self._place} must have at most max_bytes={self._max_bytes} bytes; found {size}. "
                f"Pass a larger max_bytes, or read GET {self._path} in pieces."
            )

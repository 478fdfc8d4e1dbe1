"""Frames of server-sent events as tests look at them: with their data decoded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from planq.shared.platform.values.event_stream import FrameReader


class Frame(NamedTuple):
    """An event of a stream."""

    id: str | None
    event: str
    data: Any


def frames(chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Yield the frames of an answer that is being read."""
    reader = FrameReader()
    for chunk in chunks:
        for frame in reader.feed(chunk):
            yield Frame(frame.id, frame.event, json.loads(frame.data))

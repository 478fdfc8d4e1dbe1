"""Frames of server-sent events, as a client reads them (WHATWG HTML, section 9.2), and their text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Frame:
    """An event: its position in the log (None if not from it), name, and data."""

    id: str | None
    event: str
    data: str


class FrameReader:
    """Reads frames from chunks; skips comments and an incomplete end. Lines end with LF only."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that a chunk completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line:
                name, _, value = line.decode("utf-8", "replace").partition(":")
                self._fields[name] = value.removeprefix(" ")
                continue
            fields, self._fields = self._fields, {}
            if "data" in fields:
                yield Frame(fields.get("id"), fields.get("event", "message"), fields["data"])


@dataclass(slots=True)
class SpokenText:
    """The model's text so far, of the newest attempt and try."""

    text: str = ""
    _epoch: tuple[int, int] = field(default=(0, 0))

    def add(self, piece: Mapping[str, Any]) -> bool:
        """Add a frame `text` from its offset on; False if it is outdated or leaves a gap."""
        epoch = (piece["attempt"], piece["try"])
        known = self.text if epoch == self._epoch else ""
        if epoch < self._epoch or piece["offset"] > len(known):
            return False
        self._epoch, self.text = epoch, known[: piece["offset"]] + piece["text"]
        return True

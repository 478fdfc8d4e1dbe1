"""Frames of server-sent events, as a client reads them (WHATWG HTML, section 9.2), and the text that they make up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Frame:
    """An event: its position in the log, None where it is not part of that; its name; and its data as text."""

    id: str | None
    event: str
    data: str


class FrameReader:
    """Reads the frames of one stream from its chunks; skips comments, and drops an incomplete last frame.

    Lines end with LF, as planq writes them: texts may hold any other character that ends lines elsewhere.
    """

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that a piece completes."""
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
    """What a model has said so far, of the newest attempt and try."""

    text: str = ""
    _epoch: tuple[int, int] = field(default=(0, 0))

    def add(self, piece: Mapping[str, Any]) -> bool:
        """Take in the data of a frame `text`; False where it is older than what is there, or leaves a gap.

        What follows its offset is replaced, so that nothing stands there twice.
        """
        epoch = (piece["attempt"], piece["try"])
        known = self.text if epoch == self._epoch else ""
        if epoch < self._epoch or piece["offset"] > len(known):
            return False
        self._epoch, self.text = epoch, known[: piece["offset"]] + piece["text"]
        return True

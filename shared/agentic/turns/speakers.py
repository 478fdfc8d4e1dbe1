"""The speaker of each message, as a model sees it if several people write, or a reminder.

Names come from people and ids from channels: both are short JSON of plain characters on an own line, within tags that
no text can close (docs/conversations.md).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planq.shared.agentic.turns.wording import injection_kinds

_MAX_ID_CHARS, _MAX_NAME_CHARS = 64, 40
_UNUSUAL = re.compile(r"[^\w .,@+'-]")


@dataclass(frozen=True, slots=True)
class Speaker:
    """The writer of a message, or the owner of the reminder that replaces it."""

    person: str
    name: str | None = None
    is_reminder: bool = False

    @classmethod
    def of(cls, person: str, content: Any, metadata: Any) -> Speaker:
        """Return the writer of a message with this stored `content` and `metadata`."""
        sender = content.get("from") if isinstance(content, Mapping) else None
        name = sender.get("display_name") if isinstance(sender, Mapping) else None
        is_reminder = content is None and isinstance(metadata, Mapping) and "schedule" in metadata
        return cls(person, name if isinstance(name, str) else None, is_reminder)

    def to_json(self) -> dict[str, Any]:
        """Return the speaker for a model, unique per person."""
        name = _plain(self.name or "", _MAX_NAME_CHARS)
        named = {"name": name} if name and not injection_kinds(name) else {}
        return {"id": _id(self.person), **named, **({"reminder": True} if self.is_reminder else {})}


def are_told(speakers: Iterable[Speaker]) -> bool:
    """Whether a model needs to know the speakers: several people, or a reminder."""
    found = list(speakers)
    return len({one.person for one in found}) > 1 or any(one.is_reminder for one in found)


def as_said(text: str, speaker: Speaker) -> str:
    """Return a text with its speaker, in tags with a digest of both."""
    shown = f"{json.dumps(speaker.to_json(), ensure_ascii=False)}\n{text}"
    digest = hashlib.sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"<message-{digest}>\n{shown}\n</message-{digest}>"


def _id(person: str) -> str:
    plain = _plain(person, _MAX_ID_CHARS)
    if plain == person:
        return plain
    # Else it would be shown as another one's: the digest follows a character that no plain id has.
    return f"{plain}#{hashlib.sha256(person.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _plain(text: str, most: int) -> str:
    return " ".join(_UNUSUAL.sub(" ", text).split())[:most].rstrip()

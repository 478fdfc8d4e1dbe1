"""Control characters, prompt injections and code in texts and arguments (docs/decisions.md, D41).

Findings never block anything: they are recorded for people. Patterns know common English spellings only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from planq.shared.platform.errors import storable

MAX_TEXT_CHARS = 10_000
"""Maximum length of a message; longer ones are cut."""

TRUNCATED = "... [truncated]"
"""End of a text that was cut."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_SPACE = re.compile(r"\s+")


def sanitized(text: str) -> str:
    """Return storable text without control characters but tab and line ends, cut at `MAX_TEXT_CHARS`."""
    kept = _CONTROL.sub("", storable(text.replace("\x00", "")))
    return kept if len(kept) <= MAX_TEXT_CHARS else kept[:MAX_TEXT_CHARS] + TRUNCATED


def as_read(text: str) -> str:
    """Normalize a text for patterns: full-width letters or invisible characters could hide a word."""
    return _SPACE.sub(" ", _UNSEEN.sub("", unicodedata.normalize("NFKC", text))).lower()


_EARLIER = r"(?:(?:previous|prior|earlier|above|all|any|the|your|of|these|those) ){1,4}"
_RULES = r"(?:instruction|rule|prompt)s?\b"
_ADMIN = r"(?:admin|administrator|root|superuser)\b"
_WHOSE = r"(?:tenant|user|account)"
_OTHER = r"(?:another|other|different)"

_INJECTIONS: Mapping[str, re.Pattern[str]] = {
    "meta_instruction": re.compile(
        rf"\b(?:ignore|forget|disregard|override) {_EARLIER}{_RULES}"
        r"|\byou are now an? |\bact as if you are\b|\bpretend to be\b"
    ),
    "role_playing": re.compile(
        rf"\byou are {_ADMIN}|\byou have {_ADMIN} (?:access|privileges?)\b|\b(?:switch to|access) {_WHOSE} "
    ),
    "disclosure_attempt": re.compile(
        rf"\bshow (?:me )?(?:your )?(?:the )?(?:system )?{_RULES}|\bwhat (?:are |is )?(?:your )?(?:system )?{_RULES}"
        rf"|\b(?:reveal|print) (?:your )?(?:the )?(?:system )?{_RULES}"
    ),
    "cross_access_attempt": re.compile(
        rf"\bget (?:data|info|information) from {_WHOSE} |\baccess {_OTHER} {_WHOSE}"
        rf"|\bshow me {_OTHER} {_WHOSE}(?:'s|s'?)? "
    ),
}


def injection_kinds(text: str) -> list[str]:
    """Return the kinds of prompt injection in a text, each once."""
    read = as_read(text)
    return [kind for kind, pattern in _INJECTIONS.items() if pattern.search(read)]


_SQL = re.compile(
    r"'\s*;?\s*(?:drop|delete|update|insert|alter|create|truncate)\b|\bunion (?:all )?select\b|\bor 1 ?= ?1\b|--|/\*"
)


def suspicious_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Return a sentence, with the place only, for each argument text that looks like SQL."""
    return [
        f"Suspicious SQL pattern in {'.'.join(path)}"
        for path, text in _texts(arguments, ())
        if _SQL.search(as_read(text))
    ]


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every text in decoded JSON with its path, without recursion."""
    left = [(path, value)]
    while left:
        place, found = left.pop()
        if isinstance(found, str):
            yield place, found
        elif isinstance(found, Mapping):
            left += [((*place, str(key)), item) for key, item in reversed(list(found.items()))]
        elif isinstance(found, list):
            left += [((*place, str(number)), item) for number, item in reversed(list(enumerate(found)))]

"""The referenced parts of a large output, so that the rest need not be loaded.

Compiling a plan finds the paths of each output that later steps reference. A large output is stored apart; the step's
row keeps the small values at these paths, or what was found instead. Resolving gives the same arguments (tested).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from planq.shared.platform.values.decoding import decode_stored
from planq.shared.platform.values.encoding import encode, is_larger
from planq.shared.platform.values.pointers import Path, array_index

MAX_AVAILABLE = 50
"""Maximum field names in a `MissingField`."""

MAX_VALUE_BYTES = 65_536
"""Maximum size of an excerpt."""

MAX_TOTAL_BYTES = 4 * MAX_VALUE_BYTES
"""Maximum size of all excerpts of one output, which each referencing step reads."""


@dataclass(frozen=True, slots=True)
class MissingField:
    """The first absent segment of a path, what it was `found` in, and the `available` keys of an object."""

    field: str
    found: str
    available: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Excerpts:
    """Parts of an output of `size` bytes with the SHA-256 `hash`: paths to values or `MissingField`s."""

    hash: bytes
    size: int
    parts: Mapping[Path, Any]

    def covers(self, path: Path) -> bool:
        return path in self.parts

    def at(self, path: Path) -> Any:
        """Return the value at a covered path, or `MissingField`; raises `KeyError`."""
        return self.parts[path]

    def extended(self, output: Any, paths: Iterable[Path]) -> Self:
        """Return these excerpts with the values at `paths` of the whole `output`."""
        return replace(self, parts={**self.parts, **{path: descend(output, path) for path in paths}})

    @classmethod
    def read(cls, digest: bytes, size: int, stored: Any) -> Self:
        """Read what `excerpts_json` wrote; None has no parts."""
        parts: dict[Path, Any] = {}
        for text, value in (stored or {}).get("values", {}).items():
            parts[path_of(text)] = value
        for text, (field, found, available) in (stored or {}).get("absent", {}).items():
            parts[path_of(text)] = MissingField(field, found, tuple(available))
        return cls(digest, size, parts)


def excerpts_json(output: Any, wanted: Iterable[Path]) -> bytes:
    """Return `{"values": {path: value}, "absent": {path: [...]}}` as JSON, within the size limits."""
    texts: list[tuple[bytes, bool, bytes]] = []
    for path in wanted:
        value = descend(output, path)
        is_absent = isinstance(value, MissingField)
        shown = [value.field, value.found, value.available] if isinstance(value, MissingField) else value
        if not is_larger(shown, MAX_VALUE_BYTES) and len(text := encode(shown)) <= MAX_VALUE_BYTES:
            texts.append((encode(path_text(path)), is_absent, text))
    left = MAX_TOTAL_BYTES
    kept: dict[bool, list[bytes]] = {False: [], True: []}
    for name, is_absent, text in sorted(texts, key=lambda found: len(found[2])):
        left -= len(name) + len(text)
        if left < 0:
            break
        kept[is_absent].append(name + b":" + text)
    return b'{"values":{%s},"absent":{%s}}' % (b",".join(kept[False]), b",".join(kept[True]))


def descend(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path in an output, or `MissingField`."""
    for segment in path:
        if isinstance(value, dict):
            if segment not in value:
                return MissingField(segment, "an object", tuple(str(name) for name in list(value)[:MAX_AVAILABLE]))
            value = value[segment]
        elif isinstance(value, (list, tuple)):
            index = array_index(segment)
            if index is None or index >= len(value):
                return MissingField(segment, f"an array of {len(value)}")
            value = value[index]
        else:
            return MissingField(segment, _kind(value))
    return value


def path_text(path: Path) -> str:
    """Return a path's stored form: segments joined by `.`, or a JSON array if one has a dot."""
    text = ".".join(path)
    is_plain = not text.startswith("[") and all(path) and text.count(".") == max(len(path) - 1, 0)
    return text if is_plain else encode(list(path)).decode()


def path_of(text: str) -> Path:
    if text.startswith("["):
        return tuple(decode_stored(text.encode()))
    return tuple(text.split(".")) if text else ()


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    return "a text" if isinstance(value, str) else "a number"

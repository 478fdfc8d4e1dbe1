"""The parts of a large output that later steps reference, so that the rest of it need not be loaded.

When a plan is compiled, every step learns the paths of its output that later steps reference. A large output is
stored apart from its step's row. The row keeps the small values at these paths, and for a path that leads nowhere
what was found instead. Arguments resolved over these equal those resolved over the whole output (tested).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from planq.shared.platform.values.decoding import decode_stored
from planq.shared.platform.values.encoding import encode, is_larger
from planq.shared.platform.values.pointers import Path, array_index

MAX_AVAILABLE = 50
"""How many names of present fields a `MissingField` carries; more would not help anybody who reads it."""

MAX_VALUE_BYTES = 65_536
"""The largest value that is kept as an excerpt: what is kept beside its step when it is a whole output."""

MAX_TOTAL_BYTES = 4 * MAX_VALUE_BYTES
"""Most bytes of all excerpts of one output: every step that references it reads them all."""


@dataclass(frozen=True, slots=True)
class MissingField:
    """What was found where a path leads nowhere: `field` is its first segment that was absent in `found`.

    `available` names the keys that were there instead, at most `MAX_AVAILABLE`; empty when that was no object.
    """

    field: str
    found: str
    available: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Excerpts:
    """What is known of an output of `size` bytes of JSON whose SHA-256 is `hash`.

    `parts` maps paths to the value there, or to a `MissingField`; of any other path nothing is known.
    """

    hash: bytes
    size: int
    parts: Mapping[Path, Any]

    def covers(self, path: Path) -> bool:
        return path in self.parts

    def at(self, path: Path) -> Any:
        """Return the value at a covered path, or `MissingField`; raises `KeyError` for any other."""
        return self.parts[path]

    def extended(self, output: Any, paths: Iterable[Path]) -> Self:
        """Return these excerpts and, of the whole `output`, what is at `paths`, whatever its size."""
        return replace(self, parts={**self.parts, **{path: descend(output, path) for path in paths}})

    @classmethod
    def read(cls, digest: bytes, size: int, stored: Any) -> Self:
        """Return what `excerpts_json` has written; None means that nothing is known but hash and size."""
        parts: dict[Path, Any] = {}
        for text, value in (stored or {}).get("values", {}).items():
            parts[path_of(text)] = value
        for text, (field, found, available) in (stored or {}).get("absent", {}).items():
            parts[path_of(text)] = MissingField(field, found, tuple(available))
        return cls(digest, size, parts)


def excerpts_json(output: Any, wanted: Iterable[Path]) -> bytes:
    """Return the JSON of what is kept of an output: `{"values": {path: value}, "absent": {path: [...]}}`.

    Values above `MAX_VALUE_BYTES` are left out, and the largest of the others where they would be more than
    `MAX_TOTAL_BYTES` together. A path stands there as `path_text` writes it.
    """
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
    """Return what a path leads to in an output, or `MissingField`."""
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
    """Return the stored form of a path: its segments joined by `.`, or a JSON array where one of them has a dot.

    That of the whole output is empty.
    """
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

"""References as docs/decisions.md (D2 to D4) says, written a second time, as plainly as possible.

Deliberately ignorant of the product's code, and small: schemas are followed through `properties` and `items` only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ORIGINAL = re.compile(r"^\$([0-9]+)\.output((?:\[[0-9]+\])*)(?:\.(.+))?\Z")
ALIAS = re.compile(r"^\$step\[([0-9]+)\]\.output((?:\[[0-9]+\])*)(?:\.(.+))?\Z")
NEARLY = re.compile(r"\$([0-9]+|step\[[0-9]+\])(\W{1,2}outputs?\b|\.[a-z_]\S*\Z|\[\S*\Z)", re.IGNORECASE)
ODD = re.compile(r"[\s|'\"(){}\[\],;+*]|\$[0-9]")
EMBEDDED = re.compile(r"\{\{ *(\$[^{}]*?) *\}\}")
BRACKETS = re.compile(r"\[([0-9]+)\]")


@dataclass(frozen=True)
class Place:
    """A reference, or what claims to be one, in the arguments of a call; `path` is None when it is malformed."""

    call: int
    pointer: str
    template: str
    step: int
    path: tuple[str, ...] | None
    embedded: bool


def read(text: str) -> tuple[int, tuple[str, ...]] | None:
    """Return step and path of a reference."""
    match = ORIGINAL.match(text) or ALIAS.match(text)
    if match is None or int(match[1]) >= 2**64:
        return None
    written = f"{match[2]}.{match[3] or ''}"
    return int(match[1]), tuple(part for part in BRACKETS.sub(r".\1", written).split(".")[1:] if match[3] or part)


def claims(text: str) -> bool:
    """Tell whether a text begins as a reference, or nearly."""
    return (text.startswith("$") and ".output." in text) or NEARLY.match(text.lstrip()) is not None


def strings(value: Any, pointer: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string value with its JSON pointer, in document order."""
    if isinstance(value, str):
        yield pointer, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(item, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from strings(item, f"{pointer}/{index}")


def places(calls: Sequence[Mapping[str, Any]]) -> Iterator[Place]:
    """Yield what validation must look at, in order."""
    for number, call in enumerate(calls):
        for pointer, text in strings(call["arguments"]):
            if claims(text):
                step, path = read(text) or (-1, None)
                yield Place(number, pointer, text, step, path, embedded=False)
            else:
                for match in EMBEDDED.finditer(text):
                    if claims(match[1]):
                        step, path = read(match[1]) or (-1, None)
                        yield Place(number, pointer, match[0], step, path, embedded=True)


def absent(schema: Any, path: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the first segment that the schema rules out and the fields it has there, None when it rules out none."""
    for position, segment in enumerate(path):
        if not isinstance(schema, Mapping):
            return None
        if schema.get("type") == "array":
            if not segment.isdigit():
                return segment, []
            schema = schema.get("items")
            continue
        declared = schema.get("properties") or {}
        if segment in declared:
            schema = declared[segment]
        elif schema.get("additionalProperties"):
            return None
        elif declared or position == 0 or schema.get("type") in ("string", "number", "integer", "boolean", "null"):
            return segment, list(declared)
        else:
            return None
    return None


def type_at(schema: Any, path: Sequence[str]) -> str | None:
    """Return the single type declared at the end of a path, None when there is none."""
    for segment in path:
        if not isinstance(schema, Mapping):
            return None
        within = (schema.get("properties") or {}).get(segment)
        schema = schema.get("items") if within is None and segment.isdigit() else within
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    return kind if isinstance(kind, str) else None


def value_of(text: str, outputs: Sequence[Any]) -> Any:
    """Return what a whole-string reference yields: null for what is absent."""
    found = read(text)
    assert found is not None
    step, path = found
    value = outputs[step] if step < len(outputs) else None
    for segment in path:
        if isinstance(value, Mapping):
            value = value.get(segment)
        elif isinstance(value, list) and segment.isdigit() and int(segment) < len(value):
            value = value[int(segment)]
        else:
            return None
    return value


def resolved(value: Any, outputs: Sequence[Any]) -> Any:
    """Return arguments with every reference replaced, once."""
    if isinstance(value, Mapping):
        return {key: resolved(item, outputs) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, outputs) for item in value]
    if not isinstance(value, str):
        return value
    if read(value) is not None:
        return value_of(value, outputs)

    def insert(match: re.Match[str]) -> str:
        if read(match[1]) is None:
            return match[0]
        inner = value_of(match[1], outputs)
        return inner if isinstance(inner, str) else json.dumps(inner, separators=(",", ":"), ensure_ascii=False)

    return EMBEDDED.sub(insert, value)

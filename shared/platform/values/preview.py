"""Shorten a large output, for people and models: its structure is kept, long texts and lists are cut and say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from planq.shared.platform.values.encoding import encode, is_larger, measure

PREVIEW_CHARS = 131_072
"""Length of a preview's JSON: more than half of what a model sees of all results."""

_MAX_CHILDREN = 256
_MAX_DEPTH = 12
_LEAST = 100
"""With fewer characters a value is left out."""

_MARK = 32
"""Length of the note of a cut."""


def preview(value: Any, chars: int = PREVIEW_CHARS) -> Any:
    """Return `value`, or a copy shortened to about `chars` characters of JSON."""
    return _cut(value, chars, _MAX_DEPTH)


def preview_json(value: Any) -> bytes:
    """Return a payload's preview: `{"value": …, "is_whole": nothing was cut}`."""
    shown = preview(value)
    return encode({"value": shown, "is_whole": shown is value})


def fair_share(lengths: Sequence[int], total: int) -> int:
    """Return the length to cut to; short ones leave their rest to long ones."""
    left = total
    ascending = sorted(lengths)
    for position, length in enumerate(ascending):
        share = left // (len(ascending) - position)
        if length > share:
            return share
        left -= length
    return max(ascending, default=0)


def _cut(value: Any, chars: int, depth: int) -> Any:
    if not is_larger(value, chars):
        return value
    if isinstance(value, str):
        shown = max(chars - _MARK, 0)
        return f"{value[:shown]}… [{len(value) - shown} more characters]"
    if depth == 0 or chars < _LEAST:
        return "… [left out]"
    number = min(len(value), _MAX_CHILDREN, max(1, chars // _LEAST))
    if isinstance(value, Mapping):
        names = list(islice(value, number))
        kept = _children([value[name] for name in names], chars - sum(min(len(name), chars) for name in names), depth)
        cut: dict[str, Any] = {_name(name): child for name, child in zip(names, kept, strict=True)}
        if len(value) > number:
            cut["…"] = f"[{len(value) - number} more fields]"
        return cut
    children: list[Any] = _children(value[:number], chars, depth)
    return [*children, f"… [{len(value) - number} more]"] if len(value) > number else children


def _children(values: Sequence[Any], chars: int, depth: int) -> list[Any]:
    # Sizes far above the average count as equal, so measuring stops there.
    most = 8 * max(chars, 0) // len(values) + 64
    share = fair_share([measure(value, most) for value in values], max(chars, 0))
    return [_cut(value, share, depth - 1) for value in values]


def _name(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:200]}…"

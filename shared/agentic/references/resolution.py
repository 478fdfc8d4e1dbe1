"""Turning arguments as planned into arguments as called: every reference replaced by what it points at.

One pass over the argument tree. JSON types are kept, and inserted text is never read again as a template, so no
output of a tool can make planq fetch the output of another one. docs/decisions.md, D3.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planq.shared.agentic.references.grammar import (
    Insertion,
    Reference,
    parse,
    pieces,
    walk_strings,
)
from planq.shared.platform.errors import InvalidArguments, capped
from planq.shared.platform.values.excerpts import Excerpts, MissingField, descend
from planq.shared.platform.values.pointers import Path, Tokens, to_pointer

MAX_SIZE = 16 * 1024 * 1024
"""Most characters and values that a resolution puts together: a short plan can name a large output many times."""


_MOST_TOLD = 5
"""Most absent paths that an error names."""


@dataclass(frozen=True, slots=True)
class MissingReference:
    """A reference that found nothing at run time. Where it is the whole string null stands in its place, and inside a
    text (`embedded`) there is nothing to write.

    `field` is the first path segment that was absent, `available` the names that were there instead: keys of the
    object, at most `excerpts.MAX_AVAILABLE`; empty when the value there was no object. `found` says what it was.
    """

    pointer: str
    template: str
    field: str
    found: str
    available: tuple[str, ...]
    embedded: bool = False

    def render(self) -> str:
        """Return the sentence that a step's error shows."""
        names = ", ".join(repr(capped(name, 60)) for name in self.available) or "none"
        place = self.pointer or "the arguments"
        effect = f"{place} cannot be written" if self.embedded else f"{place} became null"
        return (
            f"{capped(self.template, 200)} found no {capped(self.field, 60)!r} in {self.found} "
            f"(fields there: {names}), so {effect}"
        )


@dataclass(frozen=True, slots=True)
class ResolvedArguments:
    """The arguments to call with, what was missing, in document order, and their size in characters and values."""

    arguments: Any
    missing: tuple[MissingReference, ...]
    size: int = 0


def uncovered(arguments: Any, outputs: Mapping[int, Any]) -> dict[int, tuple[Path, ...]]:
    """Return the paths that `arguments` reference in outputs of which only `Excerpts` without them are at hand.

    Keyed by step; empty when `resolve` has all it needs.
    """
    lacking: dict[int, dict[Path, None]] = {}
    if not any(isinstance(known, Excerpts) for known in outputs.values()):
        return {}
    for _, text in walk_strings(arguments):
        for reference in _references(text):
            known = outputs.get(reference.step)
            if isinstance(known, Excerpts) and not known.covers(reference.path):
                lacking.setdefault(reference.step, {})[reference.path] = None
    return {step: tuple(paths) for step, paths in lacking.items()}


def as_called(planned: Any, outputs: Mapping[int, Any], left: int | None) -> tuple[Any, int]:
    """Return the arguments that a step was called with, and how much a further step may add to them.

    `left` is the maximum of their characters and values; None stands for `MAX_SIZE`. Returns the planned arguments
    where the resolved ones are larger, and where the `Excerpts` in `outputs` do not cover them.
    """
    left = MAX_SIZE if left is None else left
    if uncovered(planned, outputs):
        return planned, left
    try:
        resolved = resolve(planned, outputs, max_size=left)
    except InvalidArguments:
        return planned, left
    return resolved.arguments, left - resolved.size


def resolve(
    arguments: Any, outputs: Mapping[int, Any], *, max_size: int = MAX_SIZE, owned: Collection[int] = ()
) -> ResolvedArguments:
    """Replace every reference in `arguments` by the value it points at in `outputs` (step index → output).

    Of a large output its `Excerpts` do, given that `uncovered` finds nothing lacking; else it raises `KeyError`.

    A whole-string reference yields the value with its JSON type; one embedded as `{{ … }}` yields text: a string as
    it is, anything else as compact JSON. Where the step or the path is absent, a whole string becomes null, and that
    is recorded. A malformed reference stays as it is written. Neither argument is changed, and the result shares no
    container with them, so a tool may do what it likes with it. Raises `InvalidArguments` when what is absent was to
    stand inside a text (it says which fields there are), when the result would be larger than `max_size`, and when a
    value is nested too deeply (about a thousand levels) to become text.

    `owned` are steps of whose `Excerpts` nobody else holds what is referenced. Where a single reference leads into
    one, and it is a whole string, the value goes into the result as it is, without a copy, and the bytes of the whole
    output count for it. Of 46 MB in 500 000 rows a copy took 3.4 s and 190 MB (two-core test machine, 11/2026).
    """
    left = max_size
    given = _given_away(arguments, outputs, owned, max_size) if owned else {}
    missing: list[MissingReference] = []
    root: list[Any] = [None]
    stack: list[tuple[Any, Any, Any, Tokens, bool]] = [(root, 0, arguments, None, False)]
    while stack:
        holder, key, value, tokens, verbatim = stack.pop()
        if isinstance(value, str) and not verbatim and value in given:
            left -= given[value]
            if left < 0:
                raise _too_large(max_size)
            holder[key] = _resolve_text(value, outputs, tokens, missing, max_size, left)
            continue
        if isinstance(value, str) and not verbatim:
            value, verbatim = _resolve_text(value, outputs, tokens, missing, max_size, left), True
        left -= 1 + len(value) if isinstance(value, str) else 1
        if isinstance(value, dict):
            left -= sum(map(len, value))
        if left < 0:  # before anything of it is copied
            raise _too_large(max_size)
        if isinstance(value, dict):
            copy: Any = dict.fromkeys(value)
            stack.extend((copy, name, value[name], (tokens, str(name)), verbatim) for name in reversed(value))
        elif isinstance(value, (list, tuple)):
            copy = [None] * len(value)
            stack.extend(
                (copy, index, value[index], (tokens, index), verbatim) for index in range(len(value) - 1, -1, -1)
            )
        else:
            copy = value
        holder[key] = copy
    unwritten = [one.render() for one in missing if one.embedded]
    if unwritten:
        raise InvalidArguments("; ".join(unwritten[:_MOST_TOLD]))
    return ResolvedArguments(root[0], tuple(missing), max_size - left)


def _given_away(arguments: Any, outputs: Mapping[int, Any], owned: Collection[int], max_size: int) -> dict[str, int]:
    """Return the references whose values need no copy, with what each counts; none where that would be too much."""
    named = [(reference.step, text) for _, text in walk_strings(arguments) for reference in _references(text)]
    times = Counter(step for step, _ in named)
    given = {text: outputs[step].size for step, text in named if step in owned and times[step] == 1 and parse(text)}
    return given if sum(given.values()) <= max_size else {}


def _resolve_text(
    text: str, outputs: Mapping[int, Any], tokens: Tokens, missing: list[MissingReference], max_size: int, left: int
) -> Any:
    """Return what a text stands for; raises `InvalidArguments` where that has more than the `left` of `max_size`."""
    if (reference := parse(text)) is not None:
        return _value(reference, text, outputs, tokens, missing)
    cut = pieces(text)
    if cut is None:
        return text
    parts: list[str] = []
    size = 0
    for piece in cut:
        if not isinstance(piece, Insertion):
            parts.append(piece.text)
        elif piece.reference is None:
            parts.append(piece.template)
        else:
            value = _value(piece.reference, piece.template, outputs, tokens, missing, embedded=True)
            parts.append(_as_text(value))
        size += len(parts[-1])
        if size > left:  # before they are joined
            raise _too_large(max_size)
    return "".join(parts)


def _too_large(max_size: int) -> InvalidArguments:
    return InvalidArguments(
        f"with their references replaced, the arguments would hold more than {max_size} characters; "
        "refer to smaller parts of the outputs, or to each less often"
    )


def _references(text: str) -> Iterator[Reference]:
    """Yield the references of one text, those that `_resolve_text` replaces."""
    if (reference := parse(text)) is not None:
        yield reference
        return
    for piece in pieces(text) or ():
        if isinstance(piece, Insertion) and piece.reference is not None:
            yield piece.reference


def _value(
    reference: Reference,
    template: str,
    outputs: Mapping[int, Any],
    tokens: Tokens,
    missing: list[MissingReference],
    *,
    embedded: bool = False,
) -> Any:
    if reference.step not in outputs:
        first = reference.path[0] if reference.path else "output"
        found: Any = MissingField(first, f"${reference.step}, which has no output")
    else:
        output = outputs[reference.step]
        found = output.at(reference.path) if isinstance(output, Excerpts) else descend(output, reference.path)
    if isinstance(found, MissingField):
        missing.append(
            MissingReference(to_pointer(tokens), template, found.field, found.found, found.available, embedded)
        )
        return None
    return found


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except RecursionError:
        raise InvalidArguments(
            "an output nested too deeply cannot be inserted into a text; refer to a part of it"
        ) from None

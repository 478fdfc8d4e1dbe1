"""Which steps of a fork take over what a step of its source job has already done.

Two steps are the same when they would do the same: the same tool, the same arguments (numbers by value, keys in any
order, each reference by what it points at), and unless the tool is `pure`, the same writes before them in plan order,
for those made the world that the step saw. So a step is compared by a hash over its content, in which references and
the world are hashes again (a Merkle tree). `depends_on`, retries and time-outs play no part.

Effect classes are those of the tools as they are published now, on both sides: where a tool's class has changed, what
the source did is judged by what is known about the tool today. The pool plays no part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from planq.shared.agentic.plan.graph import topological_order
from planq.shared.agentic.references.grammar import Insertion, Literal, Reference, parse, pieces
from planq.shared.kernel.states import Effect
from planq.shared.kernel.steps import PlannedStep

_EXACT = 2**53
"""Up to here every integer is a float as well (IEEE 754, binary64), so that 1.0 and 1 are one number."""


@dataclass(frozen=True, slots=True)
class SourceStep:
    """A step of the source job, as planned; `effect` is that of the tool now, as far as it is still published.

    `is_in_doubt` is what `retry.is_in_doubt` says of it. Arguments that are `verbatim` hold no references.
    """

    tool_name: str
    effect: Effect
    arguments: Mapping[str, Any]
    has_succeeded: bool
    is_in_doubt: bool = False
    verbatim: bool = False


def reusable(
    source: Sequence[SourceStep], fork: Sequence[PlannedStep], *, from_step: int | None = None
) -> dict[int, int]:
    """Return for each step of the fork that need not run the source step whose output it takes over.

    A step is taken over from a succeeded step that is the same, if it stands before `from_step` (counted in the
    fork), if everything it references is taken over too, and, unless it is `pure`, if every write that it waits for,
    however indirectly, is. Nothing else is: what is not in the result runs.
    A read or a write is taken over at most once; equal `pure` steps may share one output.

    Precondition: both plans are valid, `fork` is a whole compiled plan. Linear in the size of both.
    """
    found = _counterparts(source, fork, lambda step: step.has_succeeded)
    end = len(fork) if from_step is None else from_step
    order = topological_order([step.depends_on for step in fork])
    assert order is not None, "the fork's plan has a cycle"
    reuse: dict[int, int] = {}
    awaits_write = [False] * len(fork)
    for index in order:
        step = fork[index]
        awaits_write[index] = any(
            awaits_write[earlier] or (fork[earlier].effect.is_write and earlier not in reuse)
            for earlier in step.depends_on
        )
        if index >= end or index not in found or any(needed not in reuse for needed in step.inputs):
            continue
        if step.effect is Effect.PURE or not awaits_write[index]:
            reuse[index] = found[index]
    return dict(sorted(reuse.items()))


def in_doubt(source: Sequence[SourceStep], fork: Sequence[PlannedStep]) -> dict[int, int]:
    """Return for each `unsafe` step of the fork the same step of the source, where that is in doubt.

    None of them is in what `reusable` returns, so each would run although its like may have taken effect, wherever it
    stands: that everything runs from a step on is no knowledge of what became of a call. Precondition and cost are
    those of `reusable`.
    """
    if not any(step.is_in_doubt for step in source):
        return {}
    found = _counterparts(source, fork, lambda step: step.is_in_doubt)
    return {index: own for index, own in sorted(found.items()) if fork[index].effect is Effect.UNSAFE}


def _counterparts(
    source: Sequence[SourceStep], fork: Sequence[PlannedStep], is_sought: Callable[[SourceStep], bool]
) -> dict[int, int]:
    """Return for each step of the fork the source step that is the same, where there is one that is sought.

    Equal reads are told apart by their place (`_align`), since the world may have moved between them by itself; what
    refers to one of them is then the same only as what refers to its very counterpart.
    """
    aligned = _align(_content(source, lambda _, key: key).keys, _content(fork, lambda _, key: key).keys)
    there = _content(source, lambda index, key: key if source[index].effect is Effect.PURE else f"source {index}")

    def name_in_fork(index: int, key: str) -> str:
        if fork[index].effect is Effect.PURE:
            return key
        own = aligned.get(index)
        return f"source {own}" if own is not None and there.keys[own] == key else f"fork {index}"

    sought: dict[str, int] = {}
    for index, name in enumerate(there.names):
        if is_sought(source[index]):
            sought.setdefault(name, index)
    found: dict[int, int] = {}
    for index, name in enumerate(_content(fork, name_in_fork).names):
        own = aligned.get(index)
        if own is not None and there.names[own] == name and is_sought(source[own]):
            found[index] = own
        elif name in sought:
            found[index] = sought[name]
    return found


@dataclass(frozen=True, slots=True)
class _Content:
    """Of every step of a plan the hash of its content, and the name under which the content of later steps has it."""

    keys: list[str]
    names: list[str]


def _content(steps: Sequence[SourceStep | PlannedStep], name_of: Callable[[int, str], str]) -> _Content:
    """Return the content of a plan; `name_of` names a step by its index and key, equal steps equally."""
    content = _Content([], [])
    world = ""
    for index, step in enumerate(steps):
        saw = "" if step.effect is Effect.PURE else world
        names = None if step.verbatim else content.names
        key = _digest([step.tool_name, _canonical(step.arguments, names), saw])
        name = name_of(index, key)
        content.keys.append(key)
        content.names.append(name)
        if step.effect.is_write:
            world = _digest([world, name])
    return content


def _align(source: Sequence[str], fork: Sequence[str]) -> dict[int, int]:
    """Match equal keys of two plans one to one, fork to source, so that what was not touched keeps its place.

    First the common beginning and the common end, then equal places of equally long plans, then the k-th occurrence
    that is left of a key with the k-th. So edits in place, and one insertion or removal, are seen as what they are;
    only among equal steps side by side can another one than meant be taken for the one that is gone.
    """
    shorter = min(len(source), len(fork))
    head = next((place for place in range(shorter) if source[place] != fork[place]), shorter)
    rest = shorter - head
    tail = next((place for place in range(rest) if source[-1 - place] != fork[-1 - place]), rest)
    shift = len(source) - len(fork)
    places = [*range(head), *range(len(fork) - tail, len(fork))]
    aligned = {place: place if place < head else place + shift for place in places}
    if shift == 0:
        aligned.update({place: place for place in range(head, len(fork) - tail) if source[place] == fork[place]})
    taken = set(aligned.values())
    left: dict[str, list[int]] = {}
    for place in reversed(range(len(source))):
        if place not in taken:
            left.setdefault(source[place], []).append(place)
    for place, key in enumerate(fork):
        if place not in aligned and left.get(key):
            aligned[place] = left[key].pop()
    return aligned


def _canonical(value: Any, names: Sequence[str] | None) -> Any:
    """Return a value that is equal for equal arguments: every container and text is tagged with what it is.

    Without `names` nothing in it is a reference.

    Recurses: a valid plan is at most `schemas.MAX_DEPTH` levels deep.
    """
    if isinstance(value, str):
        return value if names is None else _canonical_text(value, names)
    if isinstance(value, Mapping):
        return ["object", *([str(key), _canonical(value[key], names)] for key in sorted(value))]
    if isinstance(value, (list, tuple)):
        return ["array", *(_canonical(item, names) for item in value)]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    return value


def _canonical_text(text: str, names: Sequence[str]) -> Any:
    whole = parse(text)
    if whole is not None:
        return ["value", *_target(whole, names)]
    cut = pieces(text)
    if cut is None:
        return text
    parts = [_canonical_piece(piece, names) for piece in cut]
    # Without an insertion it is the text that its escapes stand for.
    return "".join(parts) if all(isinstance(part, str) for part in parts) else ["text", *parts]


def _canonical_piece(piece: Literal | Insertion, names: Sequence[str]) -> Any:
    if isinstance(piece, Literal):
        return piece.text
    return piece.template if piece.reference is None else ["value", *_target(piece.reference, names)]


def _target(reference: Reference, names: Sequence[str]) -> list[str]:
    return [names[reference.step], *reference.path]


def _digest(content: Any) -> str:
    return sha256(json.dumps(content, separators=(",", ":")).encode("ascii")).hexdigest()

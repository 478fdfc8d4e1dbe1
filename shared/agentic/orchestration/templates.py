r"""Templates in `with` and `prompt`: `{{ bindings.topic }}`, `{{ result.found.items.0 }}` (docs/decisions.md, D14).

`{{ topic }}` and `{{ found.items.0 }}` mean the same if the name exists; a leading dot is allowed. Other text in
double braces is a defect; literal braces are written `\\{{`.

Bindings become literals when the plan is compiled; results become references `$N.output…`, which the engine resolves.
A template that is a whole string keeps its JSON type, except in `prompt`.

Inserted text is never read again. Text that looks like a reference is escaped; if the grammar has no escape for it,
it is stored as a `GuardedTexts` text whose literals begin with a mark, which `restored` removes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from planq.shared.agentic.references.grammar import (
    Insertion,
    Reference,
    is_malformed,
    odd_segments,
    parse,
    pieces,
    shielded,
)
from planq.shared.agentic.references.resolution import MAX_SIZE
from planq.shared.platform.errors import capped
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.excerpts import MAX_AVAILABLE, MissingField, descend
from planq.shared.platform.values.pointers import Tokens, from_pointer, to_pointer

_TEMPLATE = re.compile(r"\\\{\{|\{\{((?:(?!\{\{|\}\})[^\n])*)(\}\})?")
_SPACES = ("bindings", "result")
_FILTER = re.compile(r"\|\s*(\w+)")
_MARK = "="

_MAX_NAME_SEGMENTS = 64
"""Maximum segments of a name with dots; the search costs the square of a path's length."""

_Part = str | Reference
"""A piece of a text: a literal, or the place of an output."""


@dataclass(frozen=True, slots=True)
class Target:
    """The place of the output under a result key: `path` in the output of `step`.

    `members` maps the keys of a group's children to their paths, which win over the merged output.
    """

    step: int
    path: tuple[str, ...]
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def at(self, path: Sequence[str]) -> Reference:
        """Return the reference to `path` below the output."""
        for size, name in _leading(path):
            member = self.members.get(name)
            if member is not None:
                return Reference(self.step, (*member, *path[size:]))
        return Reference(self.step, (*self.path, *path))


@dataclass(slots=True)
class Scope:
    """The names that templates of one step may use: bindings, and results of earlier steps.

    Unknown names are collected in `missing` if null can replace them, otherwise in `defects`, like results that come
    later. Bindings are inserted up to `left` characters: a short plan can name a large one many times.
    """

    bindings: Mapping[str, Any]
    results: Mapping[str, Target]
    step: int
    missing: list[str] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)
    left: int = MAX_SIZE

    def find(self, space: str, path: tuple[str, ...], place: str, *, in_text: bool = False) -> Any:
        """Return the value of a name, a `Reference` for an output; an empty `space` means both.

        An unknown name is a defect. A field that a binding or result lacks is None, and a defect inside a text.
        """
        name = f"{space}.{'.'.join(path)}" if space else ".".join(path)
        if space != "result":
            for size, first in _leading(path):
                if first in self.bindings:
                    found = descend(self.bindings[first], path[size:])
                    if isinstance(found, MissingField):
                        return self._nothing(name, place, in_text, found.available)
                    return self._afforded(found, place)
        for size, first in _leading(path):
            target = self.results.get(first)
            if target is not None:
                return self._referenced(target, path[size:], name, place)
        if odd_segments(Reference(0, path)):
            return self.refuse(f"{{{{ {name} }}}}", place)
        if space == "result" and not in_text:
            self.missing.append(name)  # as a field that a result lacks
            return None
        there = [*self.results] if space == "result" else [*self.bindings, *self.results]
        message = f"nothing is called {capped(name, 100)!r}; there: {_listed(there)}"
        self.defects.append(Defect(place, "unknown_binding", f"{place}: {message}"))
        return None

    def _nothing(self, name: str, place: str, in_text: bool, there: Sequence[str]) -> None:
        if not in_text:
            self.missing.append(name)
            return
        unknown = f"nothing is called {capped(name, 100)!r}, so it cannot be written into the text"
        self.defects.append(Defect(place, "unknown_name", f"{place}: {unknown}; there: {_listed(there)}"))

    def refuse(self, template: str, place: str) -> None:
        """Note an invalid template: as plain text the agent would see its braces."""
        expected = "write {{ bindings.NAME }} or {{ result.KEY.FIELD }}, and \\{{ for literal braces"
        found = _FILTER.search(template)
        why = "names nothing" if found is None else f"has the filter {found[1][:40]!r}, and there are none"
        named = f"{place}: {capped(template, 100)!r} {why}; {expected}"
        self.defects.append(Defect(place, "invalid_template", named))

    def _afforded(self, value: Any, place: str) -> Any:
        """Return a binding's value; None and one defect once the step is too large."""
        if self.left < 0:
            return None
        self.left -= len(as_text(value))
        if self.left >= 0:
            return value
        excess = f"with its bindings inserted the step would hold more than {MAX_SIZE} characters; insert less"
        self.defects.append(Defect(place, "too_large", f"{place}: {excess}"))
        return None

    def _referenced(self, target: Target, path: Sequence[str], name: str, place: str) -> Reference | None:
        if target.step < self.step:
            return target.at(path)
        rule = "self_reference" if target.step == self.step else "forward_reference"
        when = "this very step" if target.step == self.step else f"steps[{target.step}], which comes later"
        self.defects.append(Defect.at(place, rule, f"uses {name}, the result of {when}; use that of an earlier step"))
        return None


@dataclass(slots=True)
class GuardedTexts:
    """Guarded texts: JSON pointer of the place → the parts, as stored in the arguments."""

    texts: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    def set_aside(self, tokens: Tokens, parts: Sequence[_Part]) -> str:
        """Store a text for `restored` and return its placeholder."""
        self.texts[to_pointer(tokens)] = [
            # Written as part of a text, so that an absent value is an error here as in any other text.
            {"value": f"{{{{ {part} }}}}"} if isinstance(part, Reference) else {"text": _MARK + _escaped(part)}
            for part in parts
        ]
        return ""


def render_text(text: str, scope: Scope, guarded: GuardedTexts, tokens: Tokens, place: str) -> str:
    """Compile a text that stays one; inserted values become text."""
    return _written(_parts(text, scope, place), guarded, tokens)


def render_value(value: Any, scope: Scope, guarded: GuardedTexts, tokens: Tokens, place: str) -> Any:
    """Compile a JSON value of at most `schemas.MAX_DEPTH` levels; whole-string templates keep their types."""
    if isinstance(value, Mapping):
        return {
            name: render_value(item, scope, guarded, (tokens, str(name)), f"{place}.{name}")
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [
            render_value(item, scope, guarded, (tokens, number), f"{place}[{number}]")
            for number, item in enumerate(value)
        ]
    if not isinstance(value, str):
        return value
    whole = _TEMPLATE.fullmatch(value)
    named = _named(whole) if whole else None
    if named is None:
        return render_text(value, scope, guarded, tokens, place)
    found = scope.find(*named, place)
    return str(found) if isinstance(found, Reference) else literal(found, guarded, tokens)


def literal(value: Any, guarded: GuardedTexts, tokens: Tokens) -> Any:
    """Return `value` written so that the engine yields exactly it."""
    if isinstance(value, Mapping):
        return {name: literal(item, guarded, (tokens, str(name))) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [literal(item, guarded, (tokens, number)) for number, item in enumerate(value)]
    return _written([value], guarded, tokens) if isinstance(value, str) else value


def restored(arguments: Mapping[str, Any], texts: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return resolved arguments with the guarded texts in their places; changes nothing in place."""
    whole = dict(arguments)
    for pointer, parts in texts.items():
        joined = "".join(
            part["text"].removeprefix(_MARK) if "text" in part else as_text(part.get("value")) for part in parts
        )
        _put(whole, from_pointer(pointer), joined)
    return whole


def as_text(value: Any) -> str:
    """Return a string as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _leading(path: Sequence[str]) -> Iterator[tuple[int, str]]:
    for size in range(min(len(path), _MAX_NAME_SEGMENTS), 0, -1):
        yield size, ".".join(path[:size])


def _put(holder: Any, path: Sequence[str], text: str) -> None:
    for segment in path[:-1]:
        key: Any = int(segment) if isinstance(holder, list) else segment
        inner = holder[key]
        holder[key] = dict(inner) if isinstance(inner, Mapping) else list(inner)
        holder = holder[key]
    holder[int(path[-1]) if isinstance(holder, list) else path[-1]] = text


def _parts(text: str, scope: Scope, place: str) -> list[_Part]:
    """Cut an author's text at its templates; `$…` is literal."""
    found: list[_Part] = []
    end = 0
    for match in _TEMPLATE.finditer(text):
        found.append(text[end : match.start()])
        end = match.end()
        named = _named(match)
        if match[1] is None:
            found.append("{{")
        elif named is None:
            found.append(match[0])
            scope.refuse(match[0], place)
        else:
            value = scope.find(*named, place, in_text=True)
            found.append(value if isinstance(value, Reference) else as_text(value))
    return list(_joined([*found, text[end:]]))


def _joined(parts: Sequence[_Part]) -> Iterator[_Part]:
    """Join neighbouring literals; only an empty text has an empty literal."""
    literals: list[str] = []
    for part in parts:
        if isinstance(part, str):
            literals.append(part)
            continue
        if "".join(literals):
            yield "".join(literals)
        literals = []
        yield part
    if "".join(literals) or not any(parts):
        yield "".join(literals)


def _written(parts: Sequence[_Part], guarded: GuardedTexts, tokens: Tokens) -> str:
    """Return a text in planq's grammar that yields these parts; guarded if no text does."""
    text = shielded("".join(_escaped(part) if isinstance(part, str) else f"{{{{ {part} }}}}" for part in parts))
    return text if _reads_as(text, parts) else guarded.set_aside(tokens, parts)


def _reads_as(text: str, parts: Sequence[_Part]) -> bool:
    if parse(text) is not None or is_malformed(text):
        return False
    cut = pieces(text)
    if cut is None:
        return list(parts) == [text]
    return [piece.reference if isinstance(piece, Insertion) else piece.text for piece in cut] == list(parts)


def _escaped(text: str) -> str:
    return text.replace("{{", "\\{{")


def _named(template: re.Match[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the space of a template and the path in it; None for other text in braces."""
    expression = (template[1] or "").strip(" \t").removeprefix(".") if template[2] else ""
    reference = parse(f"$0.output.{expression}") if expression[:1] not in ("", ".", "$") else None
    if reference is None or expression in _SPACES or "|" in expression:
        return None
    if reference.path[0] in _SPACES:
        return reference.path[0], reference.path[1:]
    return "", reference.path


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(capped(one, 60)) for one in names[:MAX_AVAILABLE]) or "none"

"""JSON as a page shows it: a tree whose parts fold, a table, or the difference of two documents.

A value may be as large, deep or odd as its author likes: what is shown is bounded, and all of it is text.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from planq.api.page.words import inert
from planq.shared.agentic.references.grammar import Reference, find_references

SHOWN_NODES = 600
"""So many values of one document stand on a page; its address has it whole."""

_MOST_DEPTH = 40
_MOST_TEXT = 4_000
_TEXT_OF_A_NODE = 200
_MOST_KEY = 200
_OPEN_DEPTH = 4
_OPEN_ENTRIES = 40
_MOST_COLUMNS = 12
_MOST_ROWS = 100

_LEFT_OUT = Markup('<li class="muted">… the rest is in the JSON</li>')

_TOO_DEEP = Markup('<span class="muted">nested too deeply: the JSON has it</span>')

Marks = Mapping[str, Sequence[Reference]]
"""The references that a value came by, by the JSON pointer of its place."""


class Table(NamedTuple):
    """A list of alike objects; `left_out` rows are not shown."""

    columns: list[str]
    rows: list[list[str]]
    left_out: int


def marks_of(planned: Any) -> Marks:
    """Return what the references of planned arguments are, by the place at which each is inserted."""
    found: dict[str, list[Reference]] = {}
    for one in find_references(planned):
        if one.reference is not None:
            found.setdefault(one.pointer, []).append(one.reference)
    return found


def tree(
    value: Any, name: str, marks: Marks | None = None, most: int = SHOWN_NODES, steps_at: str = "#step-"
) -> Markup:
    """Return a value as a tree; `name` begins the ids of its parts, so that what was unfolded stays so.

    A value that references brought says at its place which ones, when it is pointed at or has the focus,
    and leads to the step: `steps_at` is the address of one without its index.
    """
    return Markup('<div class="tree" tabindex="0"><ul>{}</ul></div>').format(
        _Tree(name, marks or {}, most, steps_at).whole(value)
    )


def table_of(value: Any) -> Table | None:
    """Return a list of objects of plain values as a table; None for anything else."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(one, dict) and one for one in value):
        return None
    columns = list(dict.fromkeys(name for one in value[:_MOST_ROWS] for name in one))
    shown = value[:_MOST_ROWS]
    if len(columns) > _MOST_COLUMNS or any(isinstance(one, (dict, list)) for row in shown for one in row.values()):
        return None
    rows = [[_cell(row.get(name)) for name in columns] for row in shown]
    return Table([inert(name, _MOST_KEY) for name in columns], rows, len(value) - len(shown))


def _cell(value: Any) -> str:
    return "" if value is None else inert(value if isinstance(value, str) else _plain(value), _MOST_KEY)


class _Tree:
    """One document being shown, with what is left of its bound."""

    def __init__(self, name: str, marks: Marks, most: int, steps_at: str) -> None:
        self._name, self._marks, self._left, self._folds = name, marks, most, 0
        self._steps_at = steps_at

    def whole(self, value: Any) -> Markup:
        """Return the entries of a document: of an object its fields, which need no line above them."""
        if isinstance(value, dict) and value and not self._marks.get(""):
            return Markup("").join(self._entries(value, "", 1))
        return self._entry(value)

    def _entry(self, value: Any, key: str | None = None, place: str = "", depth: int = 0) -> Markup:
        self._left -= 1
        head = Markup("") if key is None else Markup('<span class="k">{}</span>: ').format(_text(key, _MOST_KEY))
        marks = self._marks.get(place, ())
        if not isinstance(value, (dict, list)) or not value or depth >= _MOST_DEPTH:
            return Markup("<li>{}{}</li>").format(head, self._leaf(value, marks))
        self._folds += 1
        size = f"{{{len(value)}}}" if isinstance(value, dict) else f"[{len(value)}]"
        origin = Markup("<li>{}</li>").format(self._origin(marks[0], f"all of it from {marks[0]}")) if marks else ""
        is_open = depth < _OPEN_DEPTH and (len(value) <= _OPEN_ENTRIES or depth == 0)
        return Markup(
            '<li><details id="{}-{}"{}><summary>{}<span class="muted">{}</span></summary><ul>{}{}</ul></details></li>'
        ).format(
            *(self._name, self._folds, Markup(" open") if is_open else "", head, size, origin),
            Markup("").join(self._entries(value, place, depth + 1)),
        )

    def _entries(self, value: Any, place: str, depth: int) -> list[Markup]:
        found: list[Markup] = []
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in pairs:
            if self._left <= 0:
                return [*found, _LEFT_OUT]
            name = str(key).replace("~", "~0").replace("/", "~1")
            found.append(self._entry(one, key if isinstance(key, str) else None, f"{place}/{name}", depth))
        return found

    def _leaf(self, value: Any, marks: Sequence[Reference]) -> Markup:
        if isinstance(value, (dict, list)):
            shown = _TOO_DEEP if value else Markup("{}").format(_plain(value))
        elif isinstance(value, str):
            self._left -= min(len(value), _MOST_TEXT) // _TEXT_OF_A_NODE
            kind = "text lines" if "\n" in value else "text"
            shown = Markup('<span class="{}">{}</span>').format(kind, _text(value, _MOST_TEXT))
        else:
            shown = Markup('<span class="plain">{}</span>').format(_plain(value))
        if not marks:
            return shown
        listed = ", ".join(dict.fromkeys(str(one) for one in marks))
        return self._origin(marks[0], shown, f"from {listed}")

    def _origin(self, reference: Reference, shown: Any, explanation: str | None = None) -> Markup:
        """Return a link to the step that a value came from; what it says when it is pointed at is read out, too."""
        said = "" if explanation is None else inert(explanation, 300)
        more = Markup(' data-from="{}"').format(said) if said else ""
        unseen = Markup('<span class="unseen">{}: </span>').format(said) if said else ""
        return Markup('<a class="ref" href="{}{}"{}>{}{}</a>').format(
            self._steps_at, reference.step, more, unseen, shown
        )


def _text(text: str, most: int) -> str:
    """Return a text in quotes; line breaks stay, for who reads it."""
    return f'"{inert(text, most)}"'


def _plain(value: Any) -> str:
    try:
        return json.dumps(value)
    except ValueError:  # a whole number of more digits than Python writes
        return "[a number too long to be shown]"


_MOST_LINES = 2_000


def laid_out(value: Any) -> str:
    """Return a document as JSON of many lines, of which a few differ where little was changed."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def changes_between(before: Any, after: Any, names: tuple[str, str]) -> str:
    """Return the difference of two documents, as `differences` does of their texts."""
    return differences(laid_out(before), laid_out(after), names)


def differences(before: str, after: str, names: tuple[str, str]) -> str:
    """Return the difference of two texts by lines, none where they are the same.

    Of long ones it is not looked for: that would hold up all others.
    """
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > _MOST_LINES:
        return "" if before == after else "[too long to be compared here]"
    return "\n".join(difflib.unified_diff(old, new, *names, lineterm=""))

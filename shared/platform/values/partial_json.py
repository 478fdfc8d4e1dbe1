"""Read texts from a JSON object that is still being written."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([^u]))", re.DOTALL)
_NESTED = re.compile(r'[^"{}\[\]]+')
_SPACE = re.compile(r"[ \t\r\n]+")
_SCALAR = re.compile(r"[^,}]+")

_LONGEST_ESCAPE = 6
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class PartialObject:
    """Text members of the outermost object, as far as written; invalid JSON is read up to its defect."""

    def __init__(self, names: Collection[str]) -> None:
        """`names` are the members of interest; the first of repeated ones counts."""
        self._texts: dict[str, list[str]] = {}
        self._whole: set[str] = set()
        self._names = frozenset(names)
        self._left, self._at = "", 0
        self._step: Callable[[], bool] = self._before
        self._into: list[str] | None = None
        self._then: Callable[[], bool] = self._over
        self._name: list[str] = []
        self._depth = 0

    def feed(self, piece: str) -> None:
        self._left, self._at = self._left[self._at :] + piece, 0
        while self._step():
            pass

    def taken(self, name: str) -> str:
        """Return a member's new text since the last call."""
        pieces = self._texts.get(name)
        if not pieces:
            return ""
        text = "".join(pieces)
        pieces.clear()
        return text

    def whole(self, name: str) -> str | None:
        """Return a member's complete text, else None; precondition: no `taken`."""
        return "".join(self._texts[name]) if name in self._whole else None

    def _next(self) -> str | None:
        """Consume the next character that is no space; None if it is missing."""
        if space := _SPACE.match(self._left, self._at):
            self._at = space.end()
        if self._at == len(self._left):
            return None
        self._at += 1
        return self._left[self._at - 1]

    def _pass(self, run: re.Pattern[str]) -> str | None:
        """Skip what `run` matches, and return the next character; None if it is missing."""
        if found := run.match(self._left, self._at):
            self._at = found.end()
        return self._left[self._at] if self._at < len(self._left) else None

    def _goes_to(self, step: Callable[[], bool]) -> bool:
        self._step = step
        return True

    def _reads(self, into: list[str] | None, then: Callable[[], bool]) -> bool:
        self._into, self._then = into, then
        return self._goes_to(self._in_text)

    def _over(self) -> bool:
        return False

    def _before(self) -> bool:
        first = self._next()
        return first is not None and self._goes_to(self._at_member if first == "{" else self._over)

    def _at_member(self) -> bool:
        found = self._next()
        if found is None or found == ",":
            return found is not None
        if found != '"':
            return self._goes_to(self._over)
        self._name = []
        return self._reads(self._name, self._at_colon)

    def _at_colon(self) -> bool:
        found = self._next()
        return found is not None and self._goes_to(self._at_value if found == ":" else self._over)

    def _at_value(self) -> bool:
        found = self._next()
        if found is None:
            return False
        if found == '"':
            name = "".join(self._name)
            if name not in self._names or name in self._texts:
                return self._reads(None, self._at_member)
            self._texts[name] = []
            return self._reads(self._texts[name], self._at_end)
        if found in "{[":
            self._depth = 1
            return self._goes_to(self._in_nested)
        return self._goes_to(self._in_scalar)

    def _at_end(self) -> bool:
        self._whole.add("".join(self._name))
        return self._goes_to(self._at_member)

    def _in_scalar(self) -> bool:
        return self._pass(_SCALAR) is not None and self._goes_to(self._at_member)

    def _in_nested(self) -> bool:
        found = self._pass(_NESTED)
        if found is None:
            return False
        self._at += 1
        if found == '"':
            return self._reads(None, self._in_nested)
        self._depth += 1 if found in "{[" else -1
        return self._depth > 0 or self._goes_to(self._at_member)

    def _in_text(self) -> bool:
        if plain := _PLAIN.match(self._left, self._at):
            self._at = plain.end()
            self._add(plain[0])
        if self._at == len(self._left):
            return False
        if self._left[self._at] == '"':
            self._at += 1
            return self._goes_to(self._then)
        return self._escape()

    def _escape(self) -> bool:
        found = _ESCAPE.match(self._left, self._at)
        if found is None:
            # Either the rest is still missing, or this is no escape.
            is_none = len(self._left) - self._at >= _LONGEST_ESCAPE
            return is_none and self._goes_to(self._over)
        if found[2] is not None:
            self._at = found.end()
            self._add(_SHORT.get(found[2], found[2]))
            return True
        unit = int(found[1], 16)
        if 0xD800 <= unit < 0xDC00:
            if self._may_continue(found.end()):
                return False
            low = _ESCAPE.match(self._left, found.end())
            if low is not None and low[1] is not None and 0xDC00 <= (second := int(low[1], 16)) < 0xE000:
                self._at = low.end()
                self._add(chr(0x10000 + ((unit - 0xD800) << 10) + second - 0xDC00))
                return True
        self._at = found.end()
        self._add(chr(unit))
        return True

    def _may_continue(self, at: int) -> bool:
        left = self._left[at : at + _LONGEST_ESCAPE]
        return len(left) < _LONGEST_ESCAPE and (not left or left[0] == "\\") and left[1:2] in ("", "u")

    def _add(self, text: str) -> None:
        if self._into is not None:
            self._into.append(text)

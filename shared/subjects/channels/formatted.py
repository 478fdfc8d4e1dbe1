"""Turn Markdown into text with Telegram entities, and split long texts.

An entity formats a range of a plain text, counted in UTF-16 units. So nothing in the text needs escaping.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

MAX_ENTITIES = 100
"""Telegram ignores the entities of a message after this many."""

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")
_INLINE = {"strong": "bold", "em": "italic", "s": "strikethrough"}
_LINKS = ("http://", "https://", "tg://", "mailto:")
_JOINER = "\u200d"
_RULE = "———"


@dataclass(frozen=True, slots=True)
class Entity:
    """A format of the characters from `start` to before `end`. `url` is for links, `language` for code."""

    kind: str
    start: int
    end: int
    url: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True)
class FormattedText:
    """A text and its formats, outer before inner."""

    text: str
    entities: Sequence[Entity] = ()

    @property
    def units(self) -> int:
        return utf16_units(self.text)

    def between(self, start: int, end: int) -> FormattedText:
        """Return the stripped text between two places, with its formats cut to it."""
        text = self.text[start:end].rstrip()
        start += len(text) - len(text.lstrip("\n"))
        text = text.lstrip("\n")
        end = start + len(text)
        cut = [
            replace(one, start=max(one.start, start) - start, end=min(one.end, end) - start)
            for one in self.entities
            if max(one.start, start) < min(one.end, end)
        ]
        return FormattedText(text, cut)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the entities in the form of the Bot API."""
        shown = []
        for one in self.entities[:MAX_ENTITIES]:
            entity: dict[str, Any] = {
                "type": one.kind,
                "offset": utf16_units(self.text[: one.start]),
                "length": utf16_units(self.text[one.start : one.end]),
            }
            more = {"url": one.url, "language": one.language}
            shown.append({**entity, **{name: value for name, value in more.items() if value}})
        return shown


def utf16_units(text: str) -> int:
    """Return the length of a text in UTF-16 units: characters above U+FFFF count twice."""
    return len(text) + sum(1 for character in text if character > "\uffff")


def formatted(markdown: str) -> FormattedText:
    """Convert Markdown. A text that the parser cannot read is returned unchanged."""
    try:
        return _Builder().read(_MARKDOWN.parse(markdown))
    except (RecursionError, ValueError, IndexError):
        return FormattedText(markdown)


def parts_of(whole: FormattedText, most: int) -> Sequence[FormattedText]:
    """Split a text into parts of at most `most` (4 or more) UTF-16 units; blank parts are left out.

    Cuts at the end of a paragraph, else of a line, else of a word, and outside of formats if possible. A format
    longer than a part continues in the next one. Characters stay with their combining marks.
    """
    parts, start = [], 0
    while start < len(whole.text):
        end = _fitting(whole.text, start, most)
        if end < len(whole.text):
            end = _place_to_cut(whole, start, end)
        part = whole.between(start, end)
        if part.text:
            parts.append(part)
        start = end
    return parts


def _fitting(text: str, start: int, most: int) -> int:
    """Return the end of the longest piece that fits."""
    end, units = start, 0
    while end < len(text) and units < most:
        units += 2 if text[end] > "\uffff" else 1
        end += 1
    return end if units <= most else end - 1


_CUTS = ("\n\n", "\n", " ")


def _place_to_cut(whole: FormattedText, start: int, end: int) -> int:
    """Return the best place after `start`, at most `end`."""
    for is_free in (True, False):
        for mark in _CUTS:
            for place in _after_marks(whole.text, mark, start, end):
                if not (is_free and _is_inside(whole.entities, place)):
                    return place
        if is_free and (before := _before_formats(whole.entities, start, end)) > start:
            return before
    place = end
    while place > start + 1 and _belongs_to_what_is_before(whole.text, place):
        place -= 1
    return place if place > start + 1 else end


def _after_marks(text: str, mark: str, start: int, end: int) -> Iterator[int]:
    """Yield the places after a mark, last first. Ignores places in the first quarter: the part would be too short."""
    place = text.rfind(mark, start, end)
    least = start + (end - start) // 4
    while place > least:
        yield place + len(mark)
        place = text.rfind(mark, start, place)


def _is_inside(entities: Sequence[Entity], place: int) -> bool:
    return any(one.start < place < one.end for one in entities)


def _before_formats(entities: Sequence[Entity], start: int, end: int) -> int:
    """Return the start of the outermost format open at `end`, or `start` if the part would be too short."""
    place = min((one.start for one in entities if one.start < end < one.end), default=start)
    return place if place > start + (end - start) // 4 else start


def _belongs_to_what_is_before(text: str, place: int) -> bool:
    character, before = text[place], text[place - 1]
    is_mark = unicodedata.combining(character) != 0 or "\ufe00" <= character <= "\ufe0f"
    is_tone = "\U0001f3fb" <= character <= "\U0001f3ff"
    return is_mark or is_tone or _JOINER in (character, before)


@dataclass(slots=True)
class _Builder:
    """Builds a formatted text from Markdown tokens. `is_begun`: the next words continue the current block."""

    text: str = ""
    entities: list[Entity] = field(default_factory=list)
    open: list[tuple[str, int, str | None]] = field(default_factory=list)
    lists: list[int | None] = field(default_factory=list)
    quotes: int = 0
    is_begun: bool = True

    def read(self, tokens: Sequence[Token]) -> FormattedText:
        for token in tokens:
            self._block(token)
        found = [one for one in self.entities if one.start < one.end]
        return FormattedText(self.text, sorted(found, key=lambda one: (one.start, -one.end)))

    def _block(self, token: Token) -> None:
        if token.type == "inline":
            for child in token.children or ():
                self._inline(child)
        elif token.type in ("fence", "code_block"):
            self._space()
            language = next(iter(token.info.split()), None)
            self._add(token.content.rstrip("\n"), "pre", language=language)
        elif token.type == "hr":
            self._space()
            self._say(_RULE)
        elif token.tag in ("ul", "ol"):
            self._list(token)
        elif token.tag == "li":
            if token.nesting == 1:
                self._item()
        elif token.tag == "blockquote":
            self._quote(token)
        elif token.nesting == 1:
            self._space()
            if token.type == "heading_open":
                self._begin("bold")
        elif token.type == "heading_close":
            self._end()

    def _inline(self, token: Token) -> None:
        kind = _INLINE.get(token.tag)
        if token.type == "code_inline":
            self._add(token.content, "code")
        elif token.type in ("softbreak", "hardbreak"):
            self._say("\n")
        elif token.type == "image":
            source = str(token.attrGet("src"))
            self._add(token.content or source, "text_link", url=_link(source))
        elif token.tag == "a" or kind is not None:
            if token.nesting == 1:
                self._begin(kind or "text_link", _link(str(token.attrGet("href"))) if kind is None else None)
            else:
                self._end()
        else:
            self._say(token.content)

    def _space(self) -> None:
        """Begin a block: on a new line in a list, else after an empty line."""
        if not self.is_begun:
            self.text += "\n" if self.lists else "\n\n"
        self.is_begun = True

    def _list(self, token: Token) -> None:
        if token.nesting == -1:
            self.lists.pop()
            return
        self._space()
        self.lists.append(int(token.attrGet("start") or 1) if token.tag == "ol" else None)

    def _item(self) -> None:
        self._space()
        number = self.lists[-1]
        self.text += "  " * (len(self.lists) - 1) + ("• " if number is None else f"{number}. ")
        self.lists[-1] = None if number is None else number + 1

    def _quote(self, token: Token) -> None:
        self.quotes += token.nesting  # a chat knows no quote within a quote
        if token.nesting == 1 and self.quotes == 1:
            self._space()
            self._begin("blockquote")
        elif token.nesting == -1 and self.quotes == 0:
            self._end()

    def _begin(self, kind: str, url: str | None = None) -> None:
        self.open.append((kind, len(self.text), url))

    def _end(self) -> None:
        kind, start, url = self.open.pop()
        if kind != "text_link" or url is not None:
            self.entities.append(Entity(kind, start, len(self.text), url))

    def _say(self, text: str) -> None:
        self.text += text
        self.is_begun = False

    def _add(self, text: str, kind: str, *, url: str | None = None, language: str | None = None) -> None:
        start = len(self.text)
        self._say(text)
        if kind != "text_link" or url is not None:
            self.entities.append(Entity(kind, start, len(self.text), url, language))


def _link(address: str) -> str | None:
    return address if address.lower().startswith(_LINKS) else None

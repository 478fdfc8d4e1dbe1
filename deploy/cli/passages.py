"""A document's text in searchable pieces: by heading, then by size, cut where a reader would cut.

Pure. A piece is whole paragraphs of one section, at most `LONGEST` characters; pieces do not overlap. Its heading is
the way to it inside the document ("Operations › When Redis dies"), because a search weighs headings higher.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planq.api.cli.reading import Form
from planq.shared.subjects.moments.store import Piece

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

LONGEST = 1_200
"""Characters of a piece: a few paragraphs, so that a search returns what answers the question and little else."""

SPLIT_VERSION = "1"
"""Part of a document's digest: a later way of splitting loads unchanged files again."""

_LONGEST_HEADING = 200
_BREAKS = ("\n", ". ", "! ", "? ", "; ", ", ", " ")
_PARAGRAPH_END = re.compile(r"\n[ \t]*\n")
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?\n(?:---|\.\.\.)[ \t]*\n", re.DOTALL)
_INVISIBLE = ["script", "style", "noscript", "template", "svg", "iframe"]
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_INLINE = frozenset(
    {"a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "dfn", "em", "font", "i", "kbd", "label", "mark", "q"}
    | {"rp", "rt", "ruby", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var"}
    | {"wbr"}
)
_SPACES = frozenset({"br", "td", "th"})
"""Elements that separate words but end no paragraph: a table's row is one line."""


@dataclass(slots=True)
class _Section:
    path: tuple[str, ...]
    blocks: list[str] = field(default_factory=list)


def split_document(text: str, form: Form) -> tuple[str, list[Piece]]:
    """Return a document's title, `""` when it names none, and its pieces; an empty document has no pieces."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")
    if form is Form.MARKDOWN:
        return _titled(_markdown_sections(text))
    if form is Form.HTML:
        page = _page(text)
        head = page.css_first("title")
        named = " ".join(head.text().split()) if head is not None else ""
        title, pieces = _titled(_html_sections(page))
        return (named or title)[:_LONGEST_HEADING], pieces
    return "", _pieces([_Section((), _PARAGRAPH_END.split(text))])


def _titled(sections: Iterable[_Section]) -> tuple[str, list[Piece]]:
    """Take the document's title, its first heading, off the ways that begin with it."""
    found = list(sections)
    title = next((section.path[0] for section in found if section.path), "")
    for section in found:
        if section.path[:1] == (title,):
            section.path = section.path[1:]
    return title, _pieces(found)


def _pieces(sections: Iterable[_Section]) -> list[Piece]:
    return [
        Piece(heading=" › ".join(section.path)[:_LONGEST_HEADING], body=body)
        for section in sections
        for body in _packed(section.blocks)
    ]


def _packed(blocks: Iterable[str]) -> Iterator[str]:
    """Join paragraphs as long as they fit into one piece; one that is too long alone is cut."""
    packed = ""
    for block in blocks:
        for part in _cut(block.strip("\n").rstrip()):
            joined = f"{packed}\n\n{part}" if packed else part
            if packed and len(joined) > LONGEST:
                yield packed
                packed = part
            else:
                packed = joined
    if packed:
        yield packed


def _cut(block: str) -> Iterator[str]:
    """Cut a block into parts of at most `LONGEST` characters: at a line's end, else a sentence's, else a word's."""
    while len(block) > LONGEST:
        at = next(filter(None, (_last_break(block, mark) for mark in _BREAKS)), LONGEST)
        head, block = block[:at].rstrip(), block[at:].lstrip("\n ")
        if head:
            yield head
    if block.strip():
        yield block


def _last_break(block: str, mark: str) -> int:
    """Return where the last `mark` of the first `LONGEST` characters ends, 0 when it would leave a small part."""
    at = block.rfind(mark, 0, LONGEST - len(mark) + 1)
    return at + len(mark) if at > LONGEST // 3 else 0


class _Outline:
    def __init__(self) -> None:
        self._above: list[tuple[int, str]] = []
        self.sections = [_Section(())]

    def enter(self, level: int, heading: str) -> None:
        """Begin the section under a heading, which ends those of its level and below."""
        while self._above and self._above[-1][0] >= level:
            self._above.pop()
        self._above.append((level, heading))
        self.sections.append(_Section(tuple(one for _, one in self._above if one)))

    def add(self, block: str) -> None:
        self.sections[-1].blocks.append(block)


def _markdown_sections(text: str) -> list[_Section]:
    from markdown_it import MarkdownIt

    text = _FRONT_MATTER.sub("", text)
    lines = text.split("\n")
    tokens = MarkdownIt("commonmark").parse(text)
    outline = _Outline()
    for position, token in enumerate(tokens):
        # Only blocks at the top: what they contain (a heading in a list, say) belongs to them.
        if token.level != 0 or token.map is None:
            continue
        if token.type == "heading_open":
            words = "".join(part.content or " " for part in tokens[position + 1].children or [])
            outline.enter(int(token.tag[1]), " ".join(words.split()))
        else:
            outline.add("\n".join(lines[token.map[0] : token.map[1]]))
    return outline.sections


def _page(markup: str) -> LexborHTMLParser:
    from selectolax.lexbor import LexborHTMLParser

    page = LexborHTMLParser(markup)
    page.strip_tags(_INVISIBLE, recursive=True)
    return page


def _html_sections(page: LexborHTMLParser) -> list[_Section]:
    outline = _Outline()
    words: list[str] = []

    def close() -> None:
        if block := " ".join("".join(words).split()):
            outline.add(block)
        words.clear()

    said: set[int] = set()
    for node in page.root.traverse(include_text=True) if page.root is not None else ():
        if node.mem_id in said or node.tag == "title":
            said.update(inner.mem_id for inner in node.iter(include_text=True))
        elif node.is_text_node:
            words.append(node.text_content or "")
        elif node.tag in _HEADINGS:
            close()
            outline.enter(int(node.tag[1]), " ".join(node.text(separator=" ").split()))
            said.update(inner.mem_id for inner in node.iter(include_text=True))
        elif node.tag in _SPACES:
            words.append(" ")
        elif node.tag not in _INLINE and not node.is_comment_node:
            close()
    close()
    return outline.sections

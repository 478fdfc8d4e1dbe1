"""From a page of the manual to HTML, and what there is to read.

The text is planq's own, so it may hold tags (anchors, comments). Its links lead to the pages here: all lie in one
folder, so each is named by its name alone, whatever prefix the API stands below. What a link names that the manual
does not have, a file of the sources, is shown without a link.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import PurePosixPath
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from planq.shared.platform.manual import anchor_of, manual_pages, sections_of, without_links

_MADE = re.compile(r"http-(?!api)\w+|cli|settings")
"""The pages that are made from the code: lists of fields, options and commands."""

_CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_READER = MarkdownIt("commonmark", {"html": True}).enable("table")


class ManualPage(NamedTuple):
    """A page in the list of them: its name in an address, its title, and what it is for."""

    name: str
    title: str
    about: str


def name_of(path: str) -> str:
    return PurePosixPath(path).stem


@cache
def listed_pages() -> tuple[Sequence[ManualPage], Sequence[ManualPage]]:
    """Return the pages to read, README first, and those of the reference."""
    pages = [_listed(path, text) for path, text in manual_pages().items()]
    reference = [page for page in pages if _MADE.fullmatch(page.name)]
    guides = [page for page in pages if page not in reference]
    return sorted(guides, key=lambda page: page.name != "README"), reference


def _listed(path: str, text: str) -> ManualPage:
    first = next(iter(sections_of(path, text)))
    paragraphs = (part for part in _CODE.sub("", first.text).split("\n\n") if part and part[0] not in "!<|-[")
    about = re.sub("[`*]", "", without_links(next(paragraphs, "").replace("\n", " ")))
    return ManualPage(name_of(path), first.title.replace("`", ""), about)


def page_as_html(name: str) -> Markup | None:
    """Return a page as HTML by its name; None where there is none."""
    path = next((path for path in manual_pages() if name_of(path) == name), None)
    return None if path is None else _as_html(path)


@cache
def _as_html(path: str) -> Markup:
    tokens = _READER.parse(manual_pages()[path])
    _name_headings(tokens)
    for token in tokens:
        _lead_links(token.children or (), PurePosixPath(path).parent, manual_pages())
    return Markup(_READER.renderer.render(tokens, _READER.options, {}))  # noqa: S704 - planq's own text


def _name_headings(tokens: Sequence[Token]) -> None:
    seen = Counter[str]()
    for token, inline in pairwise(tokens):
        if token.type == "heading_open":
            anchor = anchor_of(inline.content)
            token.attrSet("id", f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            seen[anchor] += 1


def _lead_links(tokens: Sequence[Token], folder: PurePosixPath, pages: Mapping[str, str]) -> None:
    is_dropped = False
    for token in tokens:
        if token.type == "image":
            token.attrSet("src", f"pictures/{PurePosixPath(str(token.attrGet('src'))).name}")
            token.attrSet("loading", "lazy")
        elif token.type == "link_open":
            place = _place(str(token.attrGet("href")), folder, pages)
            is_dropped = place is None
            if place is not None:
                token.attrSet("href", place)
        if is_dropped and token.type in ("link_open", "link_close"):
            token.tag, token.attrs = "span", {}
            is_dropped = token.type == "link_open"


def _place(href: str, folder: PurePosixPath, pages: Mapping[str, str]) -> str | None:
    """Return where a link leads from here, None where there is nothing of that."""
    if href.startswith(("#", "https://", "http://")):
        return href
    path, _, anchor = href.partition("#")
    parts: list[str] = []
    for part in (folder / path).parts:
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    target = "/".join(parts)
    if target not in pages:
        return None
    return name_of(target) + (f"#{anchor}" if anchor else "")

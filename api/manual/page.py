"""The pages of the manual: the list, the search, each page as HTML, and its pictures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, NamedTuple

from fastapi import Query
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from planq.api.page.rendering import page
from planq.api.page.route import page_router
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import NotFound
from planq.shared.platform.manual import (
    anchor_of,
    manual_pages,
    manual_pictures,
    search_pages,
    sections_of,
    without_links,
)

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


manual_routes = page_router()

_HITS = 8


@manual_routes.get("/ui/manual")
async def show_manual(request: Request, q: Annotated[str, Query(max_length=200)] = "") -> Response:
    words = q.strip()
    hits = await off_loop(search_pages, manual_pages(), words, limit=_HITS) if words else []
    found = [(_address(hit.place), hit.title, hit.excerpt) for hit in hits]
    pages, reference = await off_loop(listed_pages)
    return page(request, "manual.html", words=words, found=found, pages=pages, reference=reference)


@manual_routes.get("/ui/manual/{name}")
async def read_manual(request: Request, name: str) -> Response:
    text = await off_loop(page_as_html, name)
    if text is None:
        raise NotFound("the manual has no such page; search for what it told of")
    title = next(one.title for of_kind in listed_pages() for one in of_kind if one.name == name)
    return page(request, "manual_page.html", title=title, text=text)


@manual_routes.get("/ui/manual/pictures/{name}")
async def get_picture(name: str) -> Response:
    picture = manual_pictures().get(name)
    if picture is None:
        raise NotFound("the manual has no such picture")
    media_type = "image/svg+xml" if name.endswith(".svg") else "image/png"
    return Response(picture, media_type=media_type, headers={"Cache-Control": "private, max-age=3600"})


def _address(place: str) -> str:
    path, _, anchor = place.partition("#")
    return f"/manual/{name_of(path)}" + (f"#{anchor}" if anchor else "")

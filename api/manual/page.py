"""The pages of the manual: what there is, what a search finds, each page, and its pictures."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from planq.api.manual.reading import listed_pages, name_of, page_as_html
from planq.api.page.rendering import page
from planq.api.page.route import page_router
from planq.shared.platform.computing import off_loop
from planq.shared.platform.errors import NotFound
from planq.shared.platform.manual import manual_pages, manual_pictures, search_pages

manual_routes = page_router()

_HITS = 8


@manual_routes.get("/ui/manual")
async def show_manual(request: Request, q: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Show what fits the words, the best first; without any, all pages."""
    words = q.strip()
    hits = await off_loop(search_pages, manual_pages(), words, limit=_HITS) if words else []
    found = [(_address(hit.place), hit.title, hit.excerpt) for hit in hits]
    pages, reference = await off_loop(listed_pages)
    return page(request, "manual.html", words=words, found=found, pages=pages, reference=reference)


@manual_routes.get("/ui/manual/{name}")
async def read_manual(request: Request, name: str) -> Response:
    """Show one page."""
    text = await off_loop(page_as_html, name)
    if text is None:
        raise NotFound("the manual has no such page; search for what it told of")
    title = next(one.title for of_kind in listed_pages() for one in of_kind if one.name == name)
    return page(request, "manual_page.html", title=title, text=text)


@manual_routes.get("/ui/manual/pictures/{name}")
async def get_picture(name: str) -> Response:
    """Return a picture that a page shows."""
    picture = manual_pictures().get(name)
    if picture is None:
        raise NotFound("the manual has no such picture")
    media_type = "image/svg+xml" if name.endswith(".svg") else "image/png"
    return Response(picture, media_type=media_type, headers={"Cache-Control": "private, max-age=3600"})


def _address(place: str) -> str:
    path, _, anchor = place.partition("#")
    return f"/manual/{name_of(path)}" + (f"#{anchor}" if anchor else "")

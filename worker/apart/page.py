"""HTML as text: its title, and what a reader would see of it. Runs in a process of its own (`__main__.py`)."""

from __future__ import annotations

from selectolax.lexbor import LexborHTMLParser

from planq.shared.domain.values.charsets import decoded_page

_INVISIBLE = ["script", "style", "noscript", "template", "svg", "iframe"]


def read_page(body: bytes, charset: str | None) -> list[str]:
    """Return the title and the text of a page, a line for each of its texts; `charset` is what its header says."""
    page = LexborHTMLParser(decoded_page(body, charset))
    page.strip_tags(_INVISIBLE, recursive=True)
    title = page.css_first("title")
    named = "" if title is None else " ".join(title.text().split())
    page.strip_tags(["title"], recursive=True)
    text = "" if page.root is None else page.root.text(deep=True, separator="\n")
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [named.replace("\x00", ""), "\n".join(line for line in lines if line).replace("\x00", "")]

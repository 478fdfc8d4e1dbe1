"""HTML as text: its title, and what a reader would see of it. Runs in a process of its own (`__main__.py`)."""

from __future__ import annotations

import re

from selectolax.lexbor import LexborHTMLParser

from planq.shared.platform.values.charsets import decoded_page

_INVISIBLE = ["script", "style", "noscript", "template", "svg", "iframe"]

_DEEPEST = 512
"""As in browsers. For many a tag the parser looks through all elements that are open, so depth costs its square."""

_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*)[^<>]*>?")
_KEPT = frozenset((*_INVISIBLE, "title", "textarea", "xmp", "noembed", "noframes", "plaintext"))
"""Elements that decide whether a text is visible, or how it is parsed."""


def read_page(body: bytes, charset: str | None) -> list[str]:
    """Return the title and the text of a page, a line for each of its texts; `charset` is what its header says."""
    page = LexborHTMLParser(flattened(decoded_page(body, charset)))
    page.strip_tags(_INVISIBLE, recursive=True)
    title = page.css_first("title")
    named = "" if title is None else " ".join(title.text().split())
    page.strip_tags(["title"], recursive=True)
    text = "" if page.root is None else page.root.text(deep=True, separator="\n")
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [named.replace("\x00", ""), "\n".join(line for line in lines if line).replace("\x00", "")]


def flattened(text: str) -> str:
    """Return a page in which too deeply nested tags are line breaks, which a reader's text treats the same."""
    depth = 0

    def shallow(tag: re.Match[str]) -> str:
        nonlocal depth
        if tag[2].lower() in _KEPT:
            return tag[0]
        depth = max(0, depth - 1 if tag[1] else depth + 1)
        return tag[0] if depth + bool(tag[1]) <= _DEEPEST else "\n"

    return text if text.count("<") <= _DEEPEST else _TAG.sub(shallow, text)

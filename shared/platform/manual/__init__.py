"""The manual: README and the pages of docs/, as a clone or a wheel has them, and a search over their sections."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from planq.shared.platform.manual.ranking import (
    ManualHit,
    ManualSection,
    anchor_of,
    search_pages,
    sections_of,
    without_links,
)

__all__ = [
    "ManualHit",
    "ManualSection",
    "anchor_of",
    "manual_pages",
    "manual_pictures",
    "search_pages",
    "sections_of",
    "without_links",
]

INSTALLED = Path(__file__).resolve().parent / "pages"
"""A wheel brings the pages here, all in one folder (`planq.deploy.wheel`)."""


@cache
def manual_pages() -> Mapping[str, str]:
    """Return the text of every page by its path (`README.md`, `docs/jobs.md`); empty where there is no manual."""
    if INSTALLED.is_dir():
        found = {
            (path.name if path.name == "README.md" else f"docs/{path.name}"): path for path in INSTALLED.glob("*.md")
        }
    else:
        root = INSTALLED.parents[3]
        found = {str(path.relative_to(root)): path for path in (root / "README.md", *(root / "docs").glob("*.md"))}
    return {name: found[name].read_text("utf-8") for name in sorted(found) if found[name].is_file()}


@cache
def manual_pictures() -> Mapping[str, bytes]:
    folder = INSTALLED if INSTALLED.is_dir() else INSTALLED.parents[3] / "docs" / "pictures"
    return {path.name: path.read_bytes() for path in folder.glob("*.[sp][vn]g")}

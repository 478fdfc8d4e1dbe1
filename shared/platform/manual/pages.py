"""Where the pages of the manual lie: beside the packages of a clone, and in a folder of this one in a wheel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

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

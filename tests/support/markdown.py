"""Markdown that the reference pages are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table; `head` names the columns, separated by commas."""
    columns = head.split(", ")
    lines = [columns, ["---"] * len(columns), *(map(_cell, row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def plain(value: Any) -> str:
    """Return a default as code; nothing for what is empty."""
    if value in ("", None):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:.15g}`" if isinstance(value, float) else f"`{value}`"

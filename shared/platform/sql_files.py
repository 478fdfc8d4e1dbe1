"""The SQL files: kernel and subjects have a folder `sql` with functions and queries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

SHARED = Path(__file__).resolve().parents[1]


@cache
def sql_files() -> Sequence[Path]:
    """Return all files of SQL, sorted by path."""
    folders = *SHARED.glob("*/sql"), *SHARED.glob("*/*/sql")
    return sorted(path for folder in folders for path in folder.rglob("*.sql"))


def is_query(path: Path) -> bool:
    """True for files of statements that Python runs by name."""
    return "queries" in (path.stem, path.parent.name)

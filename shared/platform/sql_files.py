"""Where SQL lies: the kernel and each subject have a folder `sql` with their functions and their queries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

SHARED = Path(__file__).resolve().parents[1]


@cache
def sql_files() -> Sequence[Path]:
    """Return every file of SQL in these folders, in the order of their paths."""
    folders = *SHARED.glob("*/sql"), *SHARED.glob("*/*/sql")
    return sorted(path for folder in folders for path in folder.rglob("*.sql"))


def is_query(path: Path) -> bool:
    """True for files of statements that Python runs by name: `queries.sql`, and all in a folder `queries`."""
    return "queries" in (path.stem, path.parent.name)

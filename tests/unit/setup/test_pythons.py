"""Which Pythons of a machine the unit tests run on."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.pythons import candidates, found


def interpreter(folder: Path, name: str, says: str, code: int = 0) -> Path:
    """A program that answers as an interpreter of another version does."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
    program.chmod(0o755)
    return program


def test_each_version_from_3_11_on_is_tried_once_and_the_oldest_first(tmp_path: Path) -> None:
    newest = interpreter(tmp_path, "newest", "cpython 3 14 0")
    oldest = interpreter(tmp_path, "oldest", "cpython 3 11 2")
    places = [
        newest,
        oldest,
        interpreter(tmp_path, "same", "cpython 3 14 0"),
        interpreter(tmp_path, "old", "cpython 3 10 13"),
        interpreter(tmp_path, "other", "pypy 3 11 13"),
        interpreter(tmp_path, "shim", "", 127),
    ]

    assert list(found(places).items()) == [((3, 11, 2), oldest), ((3, 14, 0), newest)]


def test_the_python_that_runs_this_is_among_those_of_the_machine() -> None:
    assert sys.version_info[:3] in found([*candidates(), Path(sys.executable)])
    assert all(place.exists() for place in candidates())

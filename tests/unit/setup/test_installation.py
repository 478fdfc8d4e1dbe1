"""What a fresh clone installs from: a lock of versions and hashes, no address of an index, and few make targets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
LOCK = (ROOT / "requirements.lock").read_text()
ENTRIES = [entry for entry in re.split(r"\n(?=\S)", LOCK.strip()) if not entry.startswith("#")]


def locked_names() -> set[str]:
    return {canonicalize_name(entry.split("==")[0]) for entry in ENTRIES}


def test_the_lock_names_no_index() -> None:
    assert "://" not in LOCK
    assert not re.search(r"^\s*-(-|i|f)", "\n".join(entry.splitlines()[0] for entry in ENTRIES), re.MULTILINE)


def test_every_locked_version_is_exact_and_hashed() -> None:
    assert len(ENTRIES) > 50
    for entry in ENTRIES:
        assert re.match(r"[A-Za-z0-9._-]+==[\w.!+]+( ; [^\n]+)? \\\n    --hash=sha256:[0-9a-f]{64}", entry), entry


def test_every_dependency_of_the_project_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]

    assert {canonicalize_name(Requirement(text).name) for text in wanted} - locked_names() == set()


def test_what_builds_the_project_is_locked_so_that_installing_it_asks_no_index() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert {
        canonicalize_name(Requirement(text).name) for text in project["build-system"]["requires"]
    } <= locked_names()


def test_the_makefile_has_the_documented_targets_and_no_more() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))

    assert targets == {"up", "test", "check", "bench", "chaos", "docs", "clean"}


@pytest.mark.timeout(300)  # pip reads the metadata of every package that is there
def test_installing_says_what_it_installs_and_how_far_it_has_come(tmp_path: Path) -> None:
    # All of it is there already, so that pip asks no index.
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "install.py")],
        env={**os.environ, "PIP_NO_INDEX": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith(f"planq: installing {len(ENTRIES)} packages into {sys.prefix}")
    assert f"planq: fetching, 100 of {len(ENTRIES)}" in lines
    assert re.fullmatch(r"planq: installed in \d+ s", lines[-1])


def test_cleaning_never_removes_the_data() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nclean:")[2].partition("\n\n")[0]

    assert not re.search(r"rm -rf[^\n]*\.planq(?![\w-])", recipe)

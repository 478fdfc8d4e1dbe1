"""What `make release` decides before it changes anything."""

from __future__ import annotations

import subprocess

import pytest

from tests.support import workflow_env
from tests.support.pinned_env import ROOT
from tests.support.release import NotReady, check_version, notes_of, released

CHANGELOG = """# Changelog

## Unreleased

### Added

- A thing.

## 0.1.0 (2026-01-02)

- The first.
"""


def test_what_is_unreleased_becomes_a_section_of_the_version_and_the_notes() -> None:
    text, notes = released(CHANGELOG, "0.2.0", "2026-11-30")

    assert notes == "### Added\n\n- A thing.\n"
    assert text.split("\n## ") == [
        "# Changelog\n",
        "Unreleased\n",
        "0.2.0 (2026-11-30)\n\n### Added\n\n- A thing.\n",
        "0.1.0 (2026-01-02)\n\n- The first.\n",
    ]


def test_the_notes_of_a_release_are_found_again() -> None:
    text, notes = released(CHANGELOG, "0.2.0", "2026-11-30")

    assert notes_of(text, "0.2.0") == notes
    assert notes_of(text, "0.1.0") == "- The first.\n"


@pytest.mark.whole
def test_the_workflow_passes_the_linter() -> None:
    linter = workflow_env.ensure() / "bin" / "zizmor"
    done = subprocess.run(
        [str(linter), "--offline", str(ROOT / ".github")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_that_is_unreleased_is_no_release() -> None:
    text, _ = released(CHANGELOG, "0.2.0", "2026-11-30")

    with pytest.raises(NotReady, match="nothing under Unreleased"):
        released(text, "0.3.0", "2026-12-01")


@pytest.mark.parametrize("version", ["", "0.2", "v0.2.0", "0.2.0rc1", "0.1.9", "0.2.0"])
def test_a_version_has_three_numbers_and_is_above_the_current_one(version: str) -> None:
    with pytest.raises(NotReady, match="expected"):
        check_version(version, "0.2.0")


def test_numbers_are_compared_as_numbers() -> None:
    check_version("0.10.0", "0.9.9")

"""The version of planq and the commit that it was built from."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from shutil import which

VERSION = "0.2.0"

COMMIT_FILE = Path(__file__).with_name("commit.txt")
"""Written into a wheel when it is built (`deploy/wheel.py`); a checkout has none."""

_DIGITS = 12


@cache
def commit() -> str | None:
    """Return the first digits of the commit of the checkout or of the wheel, None if unknown."""
    if COMMIT_FILE.exists():
        return COMMIT_FILE.read_text("ascii").strip()[:_DIGITS] or None
    root, git = Path(__file__).resolve().parents[2], which("git")
    if git is None or not (root / ".git").exists():
        return None
    command = [git, "-C", str(root), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603 - our own
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()[:_DIGITS]


def release() -> str:
    """Return version and commit as one text, `0.2.0+3f2a9c1d0b7e`; without a known commit the version alone."""
    return "+".join(filter(None, (VERSION, commit())))

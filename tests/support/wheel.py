"""A wheel of planq, made of a copy of the sources: a build leaves folders beside them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.pinned_env import ROOT

FOLDERS = ("api", "deploy", "shared", "worker")


COMMIT = "3f2a9c1d0b7e5f6a7b8c9d0e1f2a3b4c5d6e7f80"
"""Of which the wheel says that it was built from it."""


def build(folder: Path) -> Path:
    """Build a wheel in an empty folder, and return its path."""
    sources = folder / "sources"
    for name in (*FOLDERS, "docs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, sources / name, ignore=ignored, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources / name)
    env = {**os.environ, "PLANQ_COMMIT": COMMIT}
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder / "made")]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=sources, env=env, check=True)
    (made,) = (folder / "made").glob("*.whl")
    return made

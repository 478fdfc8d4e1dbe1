"""What a wheel holds beside the packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.pinned_env import ROOT

PACKAGES = ("api", "deploy", "shared", "worker", "docs")


@pytest.mark.whole  # it builds one
def test_a_wheel_brings_the_handbook_that_the_sample_job_searches(tmp_path: Path) -> None:
    """Of a copy of the sources: a build leaves folders beside them."""
    sources = tmp_path / "sources"
    for folder in PACKAGES:
        shutil.copytree(ROOT / folder, sources / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path / "made")]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=sources, check=True)
    (wheel,) = (tmp_path / "made").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    documents = {f"deploy/handbook/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert documents | {"deploy/handbook/README.md"} == {n for n in names if n.startswith("deploy/handbook/")}

    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    asks = "from deploy.local.sample import handbook_paths; print(*handbook_paths())"
    found = subprocess.run(
        [sys.executable, "-c", asks], cwd=tmp_path / "installed", capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [str(tmp_path / "installed/deploy/handbook")]

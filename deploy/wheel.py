"""Builds with the manual (README and docs) next to the packages; a wheel has its commit, too."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

SOURCES = ("README.md", "docs/*.md", "docs/pictures/*")


class BuildWithManual(build_py):
    """Builds the packages with the manual and the commit; an editable install reads the project's own files."""

    def run(self) -> None:
        """Copy the packages, the manual, and the commit to where `planq.shared.platform.version` looks for it."""
        super().run()
        if not self.editable_mode:
            platform = Path(self.build_lib, "planq", "shared", "platform")
            target = platform / "manual" / "pages"
            target.mkdir(parents=True, exist_ok=True)
            for pattern in SOURCES:
                for path in Path().glob(pattern):
                    shutil.copy(path, target / path.name)
            commit = _commit()
            if commit:
                (platform / "commit.txt").write_text(commit, "ascii")


class SourcesWithManual(sdist):
    """Makes the source distribution; a wheel that is built from it has the manual as one of a checkout has."""

    def make_distribution(self) -> None:
        self.filelist.extend(str(path) for pattern in SOURCES for path in Path().glob(pattern))
        super().make_distribution()


def _commit() -> str:
    """Return the commit that is built: `PLANQ_COMMIT` where the source comes without its history, as in the image."""
    given, git = os.environ.get("PLANQ_COMMIT", ""), shutil.which("git")
    if given or git is None or not Path(".git").exists():
        return given
    command = [git, "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - our own

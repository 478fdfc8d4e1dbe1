"""What goes into a wheel beside the packages: the manual, which is the README and the docs."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools.command.build_py import build_py

SOURCES = ("README.md", "docs/*.md", "docs/pictures/*")


class BuildWithManual(build_py):
    """Builds the packages with a copy of the manual; an editable install reads the project's own files."""

    def run(self) -> None:
        """Copy the packages, and the manual to where `planq.shared.platform.manual` looks for it."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib, "planq", "shared", "platform", "manual", "pages")
            target.mkdir(parents=True, exist_ok=True)
            for pattern in SOURCES:
                for path in Path().glob(pattern):
                    shutil.copy(path, target / path.name)

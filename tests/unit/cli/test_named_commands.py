"""Every command that a page, the documentation, a setting, the doctor or an error names exists."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from planq.deploy.cli.main import create_app

ROOT = Path(__file__).parents[3]
_NAMED = re.compile(r"(?:<code>|`|^\$ (?:\w+=\S+ )*|^ {4})planq ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)


def test_pages_and_errors_name_no_command_that_does_not_exist() -> None:
    app = typer.main.get_command(create_app())
    groups = app.commands  # type: ignore[attr-defined]
    unknown = []
    files = [path for room in ("api", "worker", "shared", "deploy") for path in (ROOT / room).rglob("*.py")]
    shown = [
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "api/page/templates").glob("*.html"),
    ]
    for path in [*files, *shown]:
        for group, command in _NAMED.findall(path.read_text("utf-8")):
            found = groups.get(group)
            known = getattr(found, "commands", None)
            if found is None or (command and known is not None and command not in known):
                unknown.append(f"{path.relative_to(ROOT)}: planq {group} {command}")
    assert unknown == []

"""`python -m tests.support.lowest`: tests planq with the lowest versions that `pyproject.toml` allows.

What those require themselves is what pip finds, the tools of the tests are those of `requirements-dev.lock`. Ends
with 1 when the environment cannot be made or a test fails twice.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planq.deploy.install import run_pip
from tests.support import second_chance
from tests.support.pinned_env import ROOT

TESTS = ("tests/unit", "tests/conformance", "tests/model", "--ignore=tests/unit/setup")
"""Those that start few processes, without what looks at the versions that are installed."""

_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?P<extras>\[[\w,-]+\])?>=(?P<lowest>[\w.]+)(?P<below>,<[\d.]+)?(?P<where>;.+)?"
)
_LOCKED = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;\\]+)", re.MULTILINE)


def lowest(project: dict[str, Any]) -> list[str]:
    """Return each requirement at its lowest version; raises `ValueError` for one without a lower bound."""
    pinned = []
    for requirement in project["project"]["dependencies"]:
        found = _REQUIREMENT.fullmatch(requirement)
        if found is None:
            raise ValueError(f"expected a requirement with a lower bound, found {requirement!r}")
        pinned.append(f"{found['name']}{found['extras'] or ''}=={found['lowest']}{found['where'] or ''}")
    return pinned


def tools(project: dict[str, Any], lock: str) -> list[str]:
    """Return what the tests need beside planq, at the versions of the lock."""
    locked = {found["name"]: found["version"] for found in _LOCKED.finditer(lock)}
    wanted = [
        one for group in ("build", "dev") for one in project["dependency-groups"][group] if isinstance(one, str)
    ]
    names = [re.split(r"[^\w\[\].-]", one)[0] for one in wanted]
    return [f"{name}=={locked[name.partition('[')[0]]}" for name in names]


def main(arguments: Sequence[str]) -> int:
    """Install and test; the arguments are those of pytest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lock = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="planq-lowest-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder, "bin/python"))
        pip = [python, "-m", "pip", "install", "--quiet"]
        made = run_pip([*pip, *lowest(project), *tools(project, lock)])
        if made == 0:
            own = [*pip, "--no-build-isolation", "--no-deps", "--no-index", "-e", "."]
            made = run_pip(own, cwd=ROOT)
        if made != 0:
            return 1
        return 0 if second_chance.passes(python, arguments or TESTS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

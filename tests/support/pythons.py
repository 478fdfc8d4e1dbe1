"""`python -m tests.support.pythons`: tests core, engine and API on the newest Python of this machine.

It gets an environment of its own with what `requirements-dev.lock` names, made once (see `pinned_env`).
Ends with 1 when a test has failed there twice, or it could not be used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support import pinned_env
from tests.support.second_chance import passes, say

LOCK = pinned_env.ROOT / "requirements-dev.lock"
OLDEST = (3, 11)
NEWEST_MINOR = 30
"""No name with a higher number is looked for on the PATH."""

TESTS = ("tests/unit", "tests/integration/engine", "tests/integration/api")

TELL = "import sys; print(sys.implementation.name, *sys.version_info[:3])"

Version = tuple[int, ...]


def candidates() -> list[Path]:
    """Return where Pythons may be: on the PATH, where Debian and python.org put them, and what pyenv has built."""
    names = ["python3", *(f"python3.{minor}" for minor in range(OLDEST[1], NEWEST_MINOR))]
    folders = [*os.get_exec_path(), "/usr/bin", "/usr/local/bin"]
    named = (shutil.which(name, path=folder) for folder in folders for name in names)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return [*(Path(one) for one in named if one), *sorted(pyenv.glob("versions/*/bin/python3"))]


def found(places: Iterable[Path]) -> dict[Version, Path]:
    """Return one place of each version of CPython from 3.11 on, oldest first; what does not run is left out."""
    pythons: dict[Version, Path] = {}
    for place in places:
        done = subprocess.run([place, "-I", "-c", TELL], capture_output=True, text=True, check=False)
        implementation, *numbers = done.stdout.split() or ["none"]
        version = tuple(map(int, numbers))
        if done.returncode == 0 and implementation == "cpython" and version >= OLDEST:
            pythons.setdefault(version, place)
    return dict(sorted(pythons.items()))


def run_tests(python: Path, version: str, arguments: Sequence[str]) -> bool:
    """Run tests on a Python; return whether each passed, the second time at the latest.

    Raises CalledProcessError without an environment.
    """
    environment = pinned_env.ensure(f"python-{version}", LOCK, python=str(python), version=version, pip=True)
    pinned_env.install(environment, "--no-build-isolation", "--no-deps", "--no-index", "-e", ".")
    return passes(str(environment / "bin/python"), arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the tests, those that the arguments name or else as the module says, on the newest Python but this one."""
    pythons = found(candidates())
    newest = max(pythons, default=sys.version_info[:3])
    if newest <= sys.version_info[:3]:
        say("No newer Python is here")
        return 0
    name = ".".join(map(str, newest))
    say(f"\nTests on Python {name} ({pythons[newest]})")
    try:
        return 0 if run_tests(pythons[newest], name, arguments or TESTS) else 1
    except subprocess.CalledProcessError as error:
        say(f"no environment could be made: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

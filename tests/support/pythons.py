"""`python -m tests.support.pythons`: runs the tests on every other Python that this machine has, from 3.11 on.

On the newest one all that `make test` runs, on those between the unit tests.

Each gets an environment of its own with what `requirements-dev.lock` names, made once (see `pinned_env`).
Ends with 1 when a test has failed on any of them, or one of them could not be used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.support import pinned_env

LOCK = pinned_env.ROOT / "requirements-dev.lock"
OLDEST = (3, 11)
NEWEST_MINOR = 30
"""No name with a higher number is looked for on the PATH."""

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
    """Run tests on a Python, what fails once more and alone, as `.ci/run` does; return whether all passed then.

    Raises CalledProcessError without an environment.
    """
    environment = pinned_env.ensure(f"python-{version}", LOCK, python=str(python), version=version, pip=True)
    pinned_env.install(environment, "--no-build-isolation", "--no-deps", "--no-index", "-e", ".")
    command = [str(environment / "bin/python"), "-m", "pytest", *arguments]
    ended = subprocess.run([*command, "-n", "auto"], cwd=pinned_env.ROOT, check=False).returncode
    if ended == pytest.ExitCode.TESTS_FAILED:
        _tell("What failed runs once more, alone")
        again = [*command, "-n", "0", "--last-failed", "--last-failed-no-failures=none"]
        ended = subprocess.run(again, cwd=pinned_env.ROOT, check=False).returncode
    return ended == 0


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the tests, those that the arguments name or else as the module says, on every other Python."""
    failed = []
    others = {version: place for version, place in found(candidates()).items() if version != sys.version_info[:3]}
    newest = max(others, default=())
    for version, place in others.items():
        name = ".".join(map(str, version))
        is_whole = version == newest > sys.version_info[:3]
        _tell(f"\n{'Tests' if is_whole else 'Unit tests'} on Python {name} ({place})")
        try:
            passed = run_tests(place, name, arguments or ([] if is_whole else ["tests/unit"]))
        except subprocess.CalledProcessError as error:
            _tell(f"no environment could be made: {error}")
            passed = False
        if not passed:
            failed.append(name)
    if failed:
        _tell(f"Failed on Python {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

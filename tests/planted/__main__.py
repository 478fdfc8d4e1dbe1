"""`python -m tests.planted [TEXT…]`: plants each fault and runs its tests, before each cut of a release.

A TEXT chooses those whose file or place holds it. Prints a line for each; ends with 1 when one of them was not found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.planted.faults import FAULTS, Fault
from tests.support.pinned_env import ROOT

AT_ONCE = 2
_PARTS = ("api", "deploy", "shared", "tests", "worker", "docs", "pyproject.toml", "README.md")


def found(fault: Fault) -> str | None:
    """Plant a fault in a copy and run its tests; return the first that fails, None where all pass.

    Raises `ValueError` where its place is not there, or more than once.
    """
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    if (count := text.count(fault.right)) != 1:
        raise ValueError(
            f"{fault.file}: expected {fault.right!r} once, found it {count} times; mend tests/planted/faults.py"
        )
    with tempfile.TemporaryDirectory(prefix="planq-planted-") as folder:
        copy = Path(folder, "planq")
        copy.mkdir()
        for part in _PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
            else:
                shutil.copy(ROOT / part, copy / part)
        (copy / fault.file).write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-n0",
            "--whole",
            "-p",
            "no:cacheprovider",
            *fault.tests.split(),
        ]
        environment = {**os.environ, "PYTHONPATH": f"{copy / 'deploy/package'}{os.pathsep}{copy}"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    failed = [line.split(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"pytest ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"


def main(texts: Sequence[str]) -> int:
    """Plant the faults, two at a time, and print what found each."""
    chosen = [one for one in FAULTS if not texts or any(text in f"{one.file} {one.right}" for text in texts)]
    lived = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for fault, by in zip(chosen, pool.map(found, chosen), strict=True):
            lived += by is None
            sys.stdout.write(
                f"{'LIVED' if by is None else 'found'}  {fault.file}: {fault.wrong[:70]!r}  {by or ''}\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen)} faults, {len(chosen) - lived} found, {lived} lived\n")
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

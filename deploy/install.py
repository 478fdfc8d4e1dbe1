"""Install what a lock file names into the environment of this interpreter, and say how far it has come.

    .venv/bin/python deploy/install.py requirements.lock

For `make`, before anything is installed: the standard library alone. Returns pip's exit code. pip's errors and
warnings are shown as they are, except the warning about an index folder that lacks a package: pip prints it for each
package and each such folder, so one line sums these up.
"""

from __future__ import annotations

import re
import selectors
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import IO

_SILENCE_SECONDS = 5.0
"""After this silence of pip a line says that it is still running."""

_STEP = 20
"""How many packages a line stands for."""

_IGNORED = re.compile(r"Location '[^']*' is ignored: it is (?:either a non-existing path|neither a file)")


def main(lock: Path) -> int:
    """Run pip, report its progress in a line now and then, and return its exit code."""
    total = len(re.findall(r"^[A-Za-z0-9]\S*==", lock.read_text("utf-8"), re.MULTILINE))
    _say(f"installing {total} packages into {sys.prefix} (once, and when {lock.name} changes)")
    begun = monotonic()
    # The lock names all that is needed, so nothing is resolved: pip 23 looks for an extra of a locked package among
    # newer releases, too, and refuses these for want of a hash.
    options = ["--progress-bar", "off", "--no-deps", "--require-hashes"]
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(lock)]
    code = run_pip(command, lambda lines: _follow(lines, total, begun))
    if code == 0:
        _say(f"installed in {monotonic() - begun:.0f} s")
    return code


def run_pip(command: Sequence[str], follow: Callable[[IO[str]], None] | None = None, cwd: Path | None = None) -> int:
    """Run a pip command and return its exit code; `follow` reads its standard output, which is shown without it."""
    to = None if follow is None else subprocess.PIPE
    with subprocess.Popen(command, stdout=to, stderr=subprocess.PIPE, text=True, cwd=cwd) as pip:  # noqa: S603 - ours
        errors = Thread(target=_show_errors, args=[pip.stderr])
        errors.start()
        if follow is not None:
            assert pip.stdout is not None
            follow(pip.stdout)
        errors.join()
    return pip.returncode


def _show_errors(lines: IO[str]) -> None:
    ignored = 0
    for line in lines:
        if _IGNORED.search(line):
            ignored += 1
        else:
            sys.stderr.write(line)
            sys.stderr.flush()
    if ignored:
        sys.stderr.write(f"planq: pip ignored {ignored} folders of its indexes that do not exist (harmless)\n")
        sys.stderr.flush()


def _follow(lines: IO[str], total: int, begun: float) -> None:
    found, doing = 0, "asking the package index"
    with selectors.DefaultSelector() as ready:
        ready.register(lines, selectors.EVENT_READ)
        while True:
            if not ready.select(_SILENCE_SECONDS):
                _say(f"{doing}, {monotonic() - begun:.0f} s so far …")
                continue
            line = lines.readline()
            if not line:
                return
            if line.startswith(("Collecting ", "Requirement already satisfied")):
                found += 1
                doing = f"fetching, {found} of {total}"
                if found % _STEP == 0:
                    _say(doing)
            elif line.startswith("Installing collected packages"):
                doing = "unpacking them"
                _say(f"{doing} …")


def _say(text: str) -> None:
    sys.stdout.write(f"planq: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

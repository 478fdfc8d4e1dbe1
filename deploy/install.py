"""Install what a lock file names into the environment of this interpreter, and say how far it has come.

    .venv/bin/python deploy/install.py requirements.lock

For `make`, before anything is installed: the standard library alone. Returns pip's exit code; its errors are shown as
they are.
"""

from __future__ import annotations

import re
import selectors
import subprocess
import sys
from pathlib import Path
from time import monotonic

_SILENCE_SECONDS = 5.0
"""After so long without a word of pip's, a line says that it goes on."""

_STEP = 20
"""How many packages a line stands for."""


def main(lock: Path) -> int:
    """Run pip, report its progress in a line now and then, and return its exit code."""
    total = len(re.findall(r"^[A-Za-z0-9]\S*==", lock.read_text("utf-8"), re.MULTILINE))
    _say(f"installing {total} packages into {sys.prefix} (once, and when {lock.name} changes)")
    begun = monotonic()
    # The lock names all that is needed, so nothing is resolved: pip 23 looks for an extra of a locked package among
    # newer releases, too, and refuses these for want of a hash.
    options = ["--progress-bar", "off", "--no-deps", "--require-hashes"]
    command = [sys.executable, "-m", "pip", "install", *options, "-r", str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pip:  # noqa: S603 - our own command
        _follow(pip, total, begun)
    if pip.returncode == 0:
        _say(f"installed in {monotonic() - begun:.0f} s")
    return pip.returncode


def _follow(pip: subprocess.Popen[str], total: int, begun: float) -> None:
    """Report what pip does until it ends."""
    assert pip.stdout is not None
    found, doing = 0, "asking the package index"
    with selectors.DefaultSelector() as ready:
        ready.register(pip.stdout, selectors.EVENT_READ)
        while True:
            if not ready.select(_SILENCE_SECONDS):
                _say(f"{doing}, {monotonic() - begun:.0f} s so far …")
                continue
            line = pip.stdout.readline()
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

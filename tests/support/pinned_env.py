"""Virtual environments of their own for third-party programs that planq is tested against or compared with.

Each is created once, from a lock file with hashes, and no index is asked again. The folder is `.planq-test-envs`, or
`PLANQ_TEST_ENVS`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from planq.deploy.install import run_pip

ROOT = Path(__file__).resolve().parents[2]


THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


def folder(name: str, lock: Path, version: str = THIS) -> Path:
    """Return where the environment of a lock file and a version of Python belongs, whether it is there or not."""
    envs = Path(os.environ.get("PLANQ_TEST_ENVS") or ROOT / ".planq-test-envs")
    digest = hashlib.sha256(version.encode() + lock.read_bytes()).hexdigest()[:12]
    return envs.absolute() / f"{name}-{digest}"


def ensure(name: str, lock: Path, *, python: str = sys.executable, version: str = THIS, pip: bool = False) -> Path:
    """Return the folder of a complete environment, made now if there was none; raise when it cannot be made.

    Its Python is `python`, of this `version`; with `pip` it has a pip of its own.

    Several processes may call it at once: one makes it, the others wait. Environments of earlier locks are removed.
    """
    target = folder(name, lock, version)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{name}.lock").open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        # Written last, so an environment that was cut off while it was made is made again.
        complete = target / "complete"
        if not complete.exists():
            for old in target.parent.glob(f"{name}-*"):
                shutil.rmtree(old)
            without = [] if pip else ["--without-pip"]
            subprocess.run([python, "-m", "venv", "--clear", *without, str(target)], check=True)
            # A lock lists every package that is needed and, on purpose, not all that the packages name.
            install(target, "--no-compile", "--no-deps", "--require-hashes", "-r", str(lock))
            complete.touch()
    return target


def install(environment: Path, *arguments: str) -> None:
    """Run `pip install` for an environment, with its own pip, which knows its Python, or with that of this one."""
    own = environment / "bin/python"
    has_pip = (environment / "bin/pip").exists()
    pip = [str(own), "-m", "pip"] if has_pip else [sys.executable, "-m", "pip", "--python", str(environment)]
    command = [*pip, "install", "--quiet", *arguments]
    if code := run_pip(command, cwd=ROOT):
        raise subprocess.CalledProcessError(code, command)

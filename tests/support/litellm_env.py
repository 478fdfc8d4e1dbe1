"""A virtual environment of its own for LiteLLM's proxy, the third-party server of tests/integration/llm.

`python -m tests.support.litellm_env` creates it once, from a lock file with hashes; `make test` runs that first,
so that the tests themselves need no network. The folder is `.planq-test-envs`, or `PLANQ_TEST_ENVS`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "tests/integration/llm/litellm.lock"


def folder() -> Path:
    """Return where the environment of this lock file and this Python belongs, whether it is there or not."""
    envs = Path(os.environ.get("PLANQ_TEST_ENVS") or ROOT / ".planq-test-envs")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(version.encode() + LOCK.read_bytes()).hexdigest()[:12]
    return envs.absolute() / f"litellm-{digest}"


def ensure() -> Path:
    """Return the folder of a complete environment, made now if there was none; raise when it cannot be made.

    Several processes may call it at once: one makes it, the others wait. Environments of earlier locks are removed.
    """
    target = folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "litellm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Written last, so an environment that was cut off while it was made is made again.
        complete = target / "complete"
        if not complete.exists():
            for old in target.parent.glob("litellm-*"):
                shutil.rmtree(old)
            venv.EnvBuilder(clear=True, symlinks=True).create(target)
            # The lock lists every package that is needed and, on purpose, not all that LiteLLM names.
            pip = [sys.executable, "-m", "pip", "--python", str(target), "install", "--quiet", "--no-compile"]
            subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", str(LOCK)], check=True)
            complete.touch()
    return target


if __name__ == "__main__":
    ensure()

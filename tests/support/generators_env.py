"""The generators of clients that tests/e2e/test_generated_clients.py uses: one in Python, one for TypeScript.

`make test` runs `python -m tests.support.generators_env` before a whole run, so that the tests themselves need no
network. Without npm only the first is there, save in CI.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.support import pinned_env

LOCKS = pinned_env.ROOT / "tests/e2e/generators"
_PACKAGES = ("package.json", "package-lock.json")


def for_python() -> Path:
    """Return the folder of an environment with openapi-python-client, made now if there was none."""
    return pinned_env.ensure("openapi-python", LOCKS / "python.lock")


def for_typescript() -> Path | None:
    """Return a folder with openapi-typescript, openapi-fetch and a compiler; None on a laptop that has no npm."""
    npm = shutil.which("npm")
    if npm is None and "CI" not in os.environ:
        return None
    digest = hashlib.sha256(b"".join((LOCKS / name).read_bytes() for name in _PACKAGES)).hexdigest()[:12]
    envs = Path(os.environ.get("PLANQ_TEST_ENVS") or pinned_env.ROOT / ".planq-test-envs").absolute()
    target = envs / f"openapi-typescript-{digest}"
    envs.mkdir(parents=True, exist_ok=True)
    with (envs / "openapi-typescript.lock").open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        if not (target / "complete").exists():
            for old in envs.glob("openapi-typescript-*"):
                shutil.rmtree(old)
            target.mkdir()
            for name in _PACKAGES:
                shutil.copy(LOCKS / name, target)
            install = [npm or "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            subprocess.run(install, cwd=target, check=True)
            (target / "complete").touch()
    return target


if __name__ == "__main__":
    for_python()
    for_typescript()

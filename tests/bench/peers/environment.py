"""The environment that the peers run in: `requirements.in` says what, `requirements.lock` pins every version by hash.

The lock was made with uv (`uv pip compile --generate-hashes --universal --no-header --no-annotate`).
`python -m tests.bench.peers.environment` makes the environment and prints the versions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.support import pinned_env

LOCK = Path(__file__).with_name("requirements.lock")

_VERSIONS = """import json, sys
from importlib.metadata import version
print(json.dumps({name: version(name) for name in sys.argv[1:]}))"""

PACKAGES = {"Celery": "celery", "LangGraph": "langgraph", "LangChain": "langchain", "DBOS": "dbos"}


@cache
def python() -> Path:
    """Return the interpreter of a complete environment, made now if there was none."""
    return pinned_env.ensure("peers", LOCK) / "bin/python"


def versions() -> dict[str, str]:
    """Return the version of each peer."""
    done = subprocess.run([python(), "-c", _VERSIONS, *PACKAGES.values()], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return {name: found[package] for name, package in PACKAGES.items()}


if __name__ == "__main__":
    sys.stdout.write(f"{versions()}\n")

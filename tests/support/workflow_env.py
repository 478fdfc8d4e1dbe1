"""The environment of the linter for workflows of a forge.

`make test` runs `python -m tests.support.workflow_env` before a whole run, so that the test needs no network.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import pinned_env

LOCK = Path(__file__).with_name("workflow.lock")


def ensure() -> Path:
    """Return the environment's folder, made now if there was none."""
    return pinned_env.ensure("workflow", LOCK)


if __name__ == "__main__":
    ensure()

"""An environment with all that planq needs and with pytest, but without planq: for the examples and a wheel of it.

`make test` runs `python -m tests.support.examples_env` before a whole run, so that the tests themselves need no
network.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import pinned_env


def ensure() -> Path:
    """Return the environment's folder, made now if there was none."""
    return pinned_env.ensure("examples", pinned_env.ROOT / "requirements-dev.lock", pip=True)


if __name__ == "__main__":
    ensure()

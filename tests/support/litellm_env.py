"""The environment of LiteLLM's proxy, the third-party server of tests/integration/llm.

`make test` runs `python -m tests.support.litellm_env` before a whole run, so that the tests themselves need no
network.
"""

from __future__ import annotations

from pathlib import Path

from tests.support import pinned_env

LOCK = pinned_env.ROOT / "tests/integration/llm/litellm.lock"


def ensure() -> Path:
    """Return the environment's folder, made now if there was none."""
    return pinned_env.ensure("litellm", LOCK)


if __name__ == "__main__":
    ensure()

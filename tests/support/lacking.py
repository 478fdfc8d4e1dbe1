"""What a machine lacks that a test needs: a failure in CI, which installs it, and a skip elsewhere."""

from __future__ import annotations

import os

import pytest


def require(lack: str | None) -> None:
    """Return where nothing is lacking (None); else end the test, with what is lacking as the reason."""
    if lack is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(lack)
    pytest.skip(lack)

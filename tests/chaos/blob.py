"""Long texts that only their seed has to remember."""

from __future__ import annotations

import hashlib


def blob(seed: int, size: int) -> str:
    """Return a text of `size` ASCII characters, another one for each seed."""
    line = hashlib.sha256(str(seed).encode()).hexdigest()
    return (line * (size // len(line) + 1))[:size]

"""Long texts that only their seed has to remember, and long outputs of which only the hash is kept."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_KEPT_BYTES = 10_000


def blob(seed: int, size: int) -> str:
    """Return a text of `size` ASCII characters, another one for each seed."""
    line = hashlib.sha256(str(seed).encode()).hexdigest()
    return (line * (size // len(line) + 1))[:size]


def shrunk(output: Any) -> Any:
    """Return a step's output as it is, or `{"bytes", "sha256"}` of its JSON where that is long."""
    text = json.dumps(output, sort_keys=True, separators=(",", ":")).encode()
    if len(text) <= _KEPT_BYTES:
        return output
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}

"""Fresh ids: the clock and the entropy that `shared.domain.ids` asks for."""

from __future__ import annotations

import os
import time
from uuid import UUID

from shared.domain.ids import uuid7


def new_id() -> UUID:
    """Return a new UUIDv7."""
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))

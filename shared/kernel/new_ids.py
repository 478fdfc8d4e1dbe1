"""Fresh ids: the clock and the entropy that `planq.shared.kernel.ids` asks for."""

from __future__ import annotations

import os
import time
from uuid import UUID

from planq.shared.kernel.ids import unix_ms_of, uuid7


def new_id() -> UUID:
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


def new_ids(count: int, *, after: UUID) -> list[UUID]:
    """Return new UUIDv7s in ascending order, all of them greater than `after`, whosever clock that one is by."""
    unix_ms = max(time.time_ns() // 1_000_000, unix_ms_of(after) + 1)
    return sorted(uuid7(unix_ms, os.urandom(10)) for _ in range(count))

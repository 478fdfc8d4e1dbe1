"""`python -m tests.support.skewed SECONDS planq.worker|planq.api …`: with a clock that is wrong by so many seconds.

What reads the time of day is shifted before anything of ours is imported; the monotonic clock is what it was.
"""

from __future__ import annotations

import datetime as dates
import runpy
import sys
import time
from typing import Any


def shift(seconds: float) -> None:
    """Set the clock of this process wrong."""
    real_time, real_time_ns, real = time.time, time.time_ns, dates.datetime

    class Meta(type):
        # A time that C code made is of the real class; for Python it is one all the same.
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, real)

    class Skewed(real, metaclass=Meta):  # type: ignore[misc]
        @classmethod
        def now(cls, tz: dates.tzinfo | None = None) -> Any:
            return real.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real.fromtimestamp(time.time(), dates.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return real.fromtimestamp(time.time())

    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_time_ns() + round(seconds * 1_000_000_000)
    dates.datetime = Skewed  # type: ignore[misc]


if __name__ == "__main__":
    _, offset, program, *arguments = sys.argv
    sys.argv = [program, *arguments]
    shift(float(offset))
    runpy.run_module(program, run_name="__main__", alter_sys=True)

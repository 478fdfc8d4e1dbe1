"""What is left for Python's garbage collector: objects that refer to each other in a circle.

A planq process collects only after 100 000 new objects (`settle_heap`), so that what leaves
circles behind a thousand times a minute makes it grow.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Yield what is filled, at the end of the body, with the kinds of objects that only the collector could free."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(type(one).__qualname__ for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()

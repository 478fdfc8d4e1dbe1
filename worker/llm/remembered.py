"""What was made of things that never change, kept for the last few of them.

Things are told apart by identity: to compare, or to hash, two tools' schemas takes about as long as the work saved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

Of = TypeVar("Of")
Made = TypeVar("Made")


class Remembered(Generic[Of, Made]):
    """A function whose last `most` values are kept; use it only for what neither it nor its readers ever change.

    `make` is the function itself. `parts` names the objects that make up an argument: it is the same as before when
    they are the same objects.
    """

    def __init__(
        self, make: Callable[[Of], Made], *, most: int = 16, parts: Callable[[Of], Sequence[Any]] = lambda of: (of,)
    ) -> None:
        self.make = make
        self._most = most
        self._parts = parts
        # The parts are kept beside the value: no other object can get their ids meanwhile.
        self._kept: OrderedDict[tuple[int, ...], tuple[Sequence[Any], Made]] = OrderedDict()

    def __call__(self, of: Of) -> Made:
        """Return the value for `of`, made now unless it is one of the last ones asked for."""
        parts = tuple(self._parts(of))
        key = tuple(map(id, parts))
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][1]
        made = self.make(of)
        self._kept[key] = (parts, made)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return made

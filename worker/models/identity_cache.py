"""A cache by identity: to compare, or to hash, two tools' schemas takes about as long as the work saved."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

_Of = TypeVar("_Of")
_Made = TypeVar("_Made")


class IdentityCache(Generic[_Of, _Made]):
    """The function `make` with its last `most` values cached by the identity of the argument's `parts`."""

    def __init__(
        self,
        make: Callable[[_Of], _Made],
        *,
        most: int = 16,
        parts: Callable[[_Of], Sequence[Any]] = lambda of: (of,),
    ) -> None:
        self.make = make
        self._most = most
        self._parts = parts
        # The parts are stored with the value, so that no other object can get their ids.
        self._kept: OrderedDict[tuple[int, ...], tuple[Sequence[Any], _Made]] = OrderedDict()

    def __call__(self, of: _Of) -> _Made:
        """Return the value for `of`, made now unless it is one of the last ones asked for."""
        parts = tuple(self._parts(of))
        key = tuple(map(id, parts))
        if key not in self._kept:
            self._kept[key] = (parts, self.make(of))
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return self._kept[key][1]

"""How `make test` deals the tests out to processes (pytest-xdist), each of which has servers of its own.

The tests of a file stay together and in their order: they share what is made once per module. Files in `APART` share
nothing and would be the last to end, so each of their tests goes where there is room.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]

WORKERS_PER_CORE = 2
"""Most tests wait most of their time, for leases and for processes that start."""

FIRST = (
    "tests/chaos",
    "tests/faults",
    "tests/e2e",
    "tests/interleavings",
    "tests/unit/test_patterns.py",
    "tests/integration/cli",
    "tests/integration/operations",
    "tests/integration/lease",
    "tests/integration/broker",
    "tests/integration",
    "tests/conformance",
)
"""Where the long tests are, longest first, so that no worker ends with one; short ones fill what is left."""

APART: frozenset[str] = frozenset()


def is_narrowed(args: Iterable[str], keyword: str) -> bool:
    """Return whether only few tests were asked for: by a word of their names, or by their files."""
    return bool(keyword) or all("::" in arg or arg.endswith(".py") for arg in args)


def workers(cores: int, args: Iterable[str], keyword: str) -> int:
    """Return how many processes to use; 0, this one alone, where only few tests were asked for.

    Every process imports every test that was asked for, which takes longer than a few tests.
    """
    return 0 if is_narrowed(args, keyword) else max(2, cores * WORKERS_PER_CORE)


def scope_of(nodeid: str) -> str:
    """Return what of a test's id names those that must run together with it, one after the other."""
    path = nodeid.partition("::")[0]
    return nodeid if path in APART else path


def rank_of(nodeid: str) -> int:
    """Return the place of a test in the order of `FIRST`."""
    return next((place for place, folder in enumerate(FIRST) if nodeid.startswith(folder)), len(FIRST))


class Scheduling(LoadScopeScheduling):
    """Hands out whole scopes, those with long tests first."""

    def schedule(self) -> None:
        """Deal out the tests once every process has collected them."""
        self.config.option.loadscopereorder = False  # it would put the files with the most tests first: units
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def in_order(items: list[pytest.Item]) -> None:
    """Bring tests into the order in which they are dealt out."""
    items.sort(key=lambda item: rank_of(item.nodeid))

"""What `make test` leaves out, and `--whole` runs too: values of a parameter, and examples of a property."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

SHARE = 3
"""Without `--whole` a property is tried with one of so many examples."""


def rare(*values: object, **more: Any) -> Any:
    """Return values of parameters that only a whole run tries, for `pytest.mark.parametrize`."""
    return pytest.param(*values, marks=pytest.mark.whole, **more)


def some(values: Iterable[object], *often: object) -> list[Any]:
    """Return the values of one parameter; those that are not named in `often` are tried in a whole run alone."""
    return [one if one in often else rare(one) for one in values]


def some_plays(plays: Mapping[str, object], rarely: Collection[str]) -> list[Any]:
    """Return plays by name as values of `play`; those named in `rarely` are for a whole run alone.

    Raises `ValueError` for a name that no play has.
    """
    if unknown := set(rarely) - set(plays):
        raise ValueError(f"no such play: {', '.join(sorted(unknown))}")
    return [rare(one, id=one[0]) if one[0] in rarely else pytest.param(one, id=one[0]) for one in plays.items()]


def examples(most: int) -> int:
    """Return with how many examples Hypothesis tries a property that a whole run tries with `most`."""
    return most if os.environ.get("TESTS_WHOLE") == "1" else -(-most // SHARE)

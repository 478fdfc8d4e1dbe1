"""The pauses between tries: doubled each time, up to a bound."""

from __future__ import annotations

from itertools import islice

from planq.shared.platform.values.backoff import pause_after, pauses


def test_a_pause_is_doubled_up_to_the_longest() -> None:
    assert list(islice(pauses(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert pause_after(0, 0.5, 3.0) == 0.0, "nothing has failed yet"
    assert pause_after(10**9, 0.5, 3.0) == 3.0, "no number of failures overflows"

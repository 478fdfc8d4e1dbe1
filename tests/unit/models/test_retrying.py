"""When a call to a model is tried again, and how long that waits."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from planq.shared.platform.errors import AuthFailed, RateLimited, TimedOut, Transient
from planq.worker.models.gateway import TryLimits
from planq.worker.models.settings import ModelSettings


class Attempts:
    """Fails with the given errors in order, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.waits: list[float] = []
        self.made = 0

    async def __call__(self) -> str:
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def run(self, settings: ModelSettings, jitter: float = 1.0) -> str:
        return asyncio.run(TryLimits(settings, self.sleep, lambda: jitter).insist(self))


SETTINGS = ModelSettings(max_attempts=5, backoff_base=1.0, backoff_cap=3.0, retry_after_cap=20.0)


def test_waits_grow_up_to_the_cap_and_are_jittered() -> None:
    attempts = Attempts(Transient("a"), TimedOut("b"), RateLimited("c"), Transient("d"))

    assert attempts.run(SETTINGS, jitter=0.5) == "done"
    assert attempts.made == 5
    assert attempts.waits == [0.5, 1.0, 1.5, 1.5]


def test_the_last_error_is_raised_after_as_many_attempts_as_are_allowed() -> None:
    attempts = Attempts(*[Transient(f"number {number}") for number in range(1, 9)])

    with pytest.raises(Transient, match="number 5"):
        attempts.run(SETTINGS)

    assert (attempts.made, len(attempts.waits)) == (5, 4)


def test_an_error_that_stays_is_not_tried_again() -> None:
    attempts = Attempts(AuthFailed("no"))

    with pytest.raises(AuthFailed):
        attempts.run(SETTINGS)

    assert (attempts.made, attempts.waits) == (1, [])


@pytest.mark.parametrize(("wish", "waited"), [(0, 1.0), (12, 12.0), (20, 20.0)])
def test_the_servers_wish_is_a_floor(wish: int, waited: float) -> None:
    attempts = Attempts(RateLimited("slow", timedelta(seconds=wish)))

    attempts.run(SETTINGS)

    assert attempts.waits == [waited]


def test_a_wish_beyond_the_cap_gives_up_and_is_passed_on() -> None:
    attempts = Attempts(RateLimited("slow", timedelta(seconds=21)))

    with pytest.raises(RateLimited) as caught:
        attempts.run(SETTINGS)

    assert attempts.waits == []
    assert caught.value.retry_after == timedelta(seconds=21)


def test_a_defect_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        Attempts(ZeroDivisionError()).run(SETTINGS)

"""Reports of a call: each counts at once, few are written, and the database is told before its time is over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from planq.shared.platform.errors import DatabaseUnavailable
from planq.worker.handlers.tool_call import CallProgress


class Call:
    """A call on a clock that moves by hand; waits end at once, and move it."""

    def __init__(self, longest: float | None = 100.0, seconds: float = 6.0) -> None:
        self.now = 0.0
        self.written: list[tuple[float, float | None, str, float | None]] = []
        self.given: list[float] = []
        self.fails = 0
        real = asyncio.sleep

        async def wait(seconds: float) -> None:
            self.now += seconds
            await real(0)

        self.reports = CallProgress(
            self._write, self.given.append, seconds=seconds, longest=longest, clock=lambda: self.now, sleep=wait
        )

    async def _write(self, done: float | None, message: str, seconds: float | None) -> bool:
        if self.fails:
            self.fails -= 1
            raise DatabaseUnavailable("away")
        self.written.append((self.now, done, message, seconds))
        return True

    async def settled(self) -> None:
        writing = self.reports._writing
        assert writing is not None
        await writing


def play(scenario: Any) -> None:
    asyncio.run(scenario())


def test_the_first_report_is_written_at_once_and_the_newest_after_a_pause() -> None:
    async def scenario() -> None:
        call = Call()
        call.reports.report(0.1, "one")
        await call.settled()
        assert call.written == [(0.0, 0.1, "one", 8.0)]
        for number in range(2, 6):
            call.reports.report(number / 10, str(number))
        await call.settled()
        assert call.written[1:] == [(1.0, 0.5, "5", None)], "the others are told by the newest"
        assert call.given == [6.0] * 5, "each counts here"

    play(scenario)


def test_what_gives_time_is_written_in_time_and_gives_more_than_counts_here() -> None:
    async def scenario() -> None:
        call = Call()
        for moment in (0.0, 2.0, 4.0, 97.0):
            call.now = moment
            call.reports.report(None, "")
            await call.settled()
        assert [more for _, _, _, more in call.written] == [8.0, 8.0, 8.0, 3.0], "never beyond the longest"
        assert call.given == [6.0, 6.0, 6.0, 3.0]
        call.now = 101.0
        call.reports.report(None, "")
        assert len(call.given) == 4, "its time is over"
        call.reports.close()

    play(scenario)


def test_a_report_of_a_tool_without_more_time_only_tells() -> None:
    async def scenario() -> None:
        call = Call(longest=None)
        call.reports.report(1.0, "x" * 1000)
        await call.settled()
        assert call.given == []
        ((_, done, message, more),) = call.written
        assert (done, len(message) < 600, more) == (1.0, True, None)

    play(scenario)


def test_a_database_that_is_away_is_told_by_the_next_report() -> None:
    async def scenario() -> None:
        call = Call()
        call.fails = 1
        call.reports.report(0.1, "lost")
        await call.settled()
        call.reports.report(0.2, "kept")
        await call.settled()
        assert call.written == [(0.0, 0.2, "kept", 8.0)]

    play(scenario)


@pytest.mark.parametrize("done", [-0.1, 1.1, float("nan")])
def test_what_is_no_part_of_the_whole_is_refused(done: float) -> None:
    async def scenario() -> None:
        call = Call()
        with pytest.raises(ValueError, match="expected a part from 0 to 1"):
            call.reports.report(done, "")
        assert call.written == []

    play(scenario)

"""How `planq telegram poll` ends: by a signal, also where what waits has lost a cancel."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from planq.deploy.cli.telegram import until_signal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_what_has_lost_its_first_cancel(number: signal.Signals) -> None:
    lost = []

    async def deaf() -> str:
        os.kill(os.getpid(), number)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if lost:
                    raise
                lost.append(1)

    async def run() -> tuple[str | None, signal.Signals | None]:
        return await asyncio.wait_for(until_signal(deaf(), again=0.01), 60)

    before = signal.getsignal(number)
    assert asyncio.run(run()) == (None, number)
    assert lost == [1]
    assert signal.getsignal(number) == before


def test_without_a_signal_it_is_what_the_work_does() -> None:
    async def told() -> str:
        return "told"

    async def wrong() -> str:
        raise KeyError("wrong")

    assert asyncio.run(until_signal(told())) == ("told", None)
    with pytest.raises(KeyError, match="wrong"):
        asyncio.run(until_signal(wrong()))

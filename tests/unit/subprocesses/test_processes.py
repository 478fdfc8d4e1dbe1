"""Work in processes that can be killed: its answers, its end, whose turn it is, and what the process is given."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from planq.worker.subprocesses import Apart, Failed, WorkRefused
from tests.support.living import command_line
from tests.support.waiting import eventually

ENDLESS = "while True: pass"
EXPRESSION = f"[{','.join(['[?@>`0`]'] * 200)}]"


@pytest.fixture
def apart() -> Iterator[Apart]:
    running = Apart()
    yield running
    running.close()


def below() -> list[psutil.Process]:
    """Return the processes that work apart; a session of tests has other children, too."""
    mine = {"planq.worker.subprocesses", "script.py"}
    return [one for one in psutil.Process().children() if mine & {Path(part).name for part in command_line(one)}]


def scripted(tmp_path: Path, script: str, slots: int = 3) -> Apart:
    path = tmp_path / "script.py"
    path.write_text(script)
    return Apart(slots=slots, command=[sys.executable, str(path)])


def test_work_is_answered_and_its_process_is_kept(apart: Apart) -> None:
    async def twice() -> list[object]:
        page = await apart.call("t", "page", b"<title>T</title><p>a", None, seconds=30)
        (kept,) = below()
        found = await apart.call("t", "query", "[].a", [{"a": 2**70}, {"a": "\ud800"}], 1_000, seconds=30)
        assert below() == [kept]
        return [page, found]

    assert asyncio.run(twice()) == [["T", "a"], [2**70, "\ud800"]]


def test_what_cannot_be_done_says_why_and_keeps_the_process(apart: Apart) -> None:
    async def refused() -> None:
        with pytest.raises(WorkRefused, match="takes more than 10 steps"):
            await apart.call("t", "query", "[].a", [1] * 100, 10, seconds=30)
        assert await apart.call("t", "query", "@", 1, 10, seconds=30) == 1

    asyncio.run(refused())


def test_what_takes_too_long_is_killed_while_the_loop_goes_on(apart: Apart) -> None:
    async def late() -> int:
        turns = 0

        async def beat() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beating = asyncio.create_task(beat())
        with pytest.raises(Failed, match=r"0\.5 s") as failed:
            await apart.call("t", "query", EXPRESSION, [1] * 5_500, 10_000_000, seconds=0.5)
        assert failed.value.is_late
        beating.cancel()
        return turns

    assert asyncio.run(late()) > 1_000
    eventually(lambda: not below(), what="the process is gone")


def test_what_gets_no_processor_is_told_from_what_computes_for_too_long(tmp_path: Path) -> None:
    """A page of 2 kB was given up for good on a machine whose processors others had (2026-11)."""
    standing = scripted(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")

    with pytest.raises(Failed, match="got no") as failed:
        asyncio.run(standing.call("t", "page", b"", None, seconds=0.05))

    assert failed.value.is_starved
    standing.close()


def test_what_computes_for_long_goes_last_and_takes_no_more_work(tmp_path: Path) -> None:
    """Queries of half a minute each would share every processor with whoever waits for an answer."""
    go = tmp_path / "go"
    busy = scripted(
        tmp_path,
        "import os, sys\n"
        "sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), 'big'))\n"
        f"while not os.path.exists({str(go)!r}): pass\n"
        "sys.stdout.buffer.write((11).to_bytes(8, 'big') + b'{\"value\":1}')\n"
        "sys.stdout.buffer.flush()\n"
        "sys.stdin.buffer.read()\n",
    )

    async def long() -> object:
        asked = asyncio.create_task(busy.call("t", "page", b"", None, seconds=600))
        await asyncio.to_thread(eventually, lambda: [one.nice() for one in below()] == [19], what="it goes last")
        go.touch()
        return await asked

    assert asyncio.run(long()) == 1
    eventually(lambda: not below(), what="the process is gone")
    busy.close()


def test_work_that_nobody_waits_for_is_killed(apart: Apart) -> None:
    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await apart.call("t", "query", EXPRESSION, [1] * 5_500, 10_000_000, seconds=600)

    asyncio.run(cancelled())
    eventually(lambda: not below(), what="the process is gone")


def test_a_process_that_ends_over_its_work_fails_it_alone(tmp_path: Path) -> None:
    dying = scripted(tmp_path, "import sys; sys.stdin.buffer.read(8); sys.exit(3)")

    with pytest.raises(Failed, match="ended") as failed:
        asyncio.run(dying.call("t", "page", b"", None, seconds=30))

    assert not failed.value.is_late
    dying.close()


def test_a_process_that_ended_while_it_was_idle_is_replaced(apart: Apart) -> None:
    asyncio.run(apart.call("t", "query", "@", 1, 10, seconds=30))
    (idle,) = below()
    idle.kill()
    eventually(lambda: not below(), what="the process is gone")

    assert asyncio.run(apart.call("t", "query", "@", 2, 10, seconds=30)) == 2


def test_a_process_gets_no_secret_of_the_worker(apart: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANQ_SECRET_KEYS", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    asyncio.run(apart.call("t", "query", "@", 1, 10, seconds=30))

    (process,) = below()
    assert "secret" not in process.environ().values()
    assert process.nice() > psutil.Process().nice()
    assert os.getpgid(process.pid) != os.getpgid(0)


def test_what_needs_more_memory_than_there_is_fails_there(apart: Apart) -> None:
    async def large() -> None:
        doubled = f"to_string({'|'.join(['[@,@]'] * 10)})"
        with pytest.raises(WorkRefused, match="MemoryError"):
            await apart.call("t", "query", doubled, "x" * 1_000_000, 10**9, seconds=300)
        assert await apart.call("t", "query", "@", 1, 10, seconds=30) == 1

    asyncio.run(large())


def test_one_tenant_leaves_a_slot_to_others_and_the_smaller_share_goes_first(tmp_path: Path) -> None:
    waiting = scripted(tmp_path, ENDLESS, slots=2)

    async def crowd() -> None:
        def ask(tenant: str) -> asyncio.Task[object]:
            return asyncio.create_task(waiting.call(tenant, "page", b"", None, seconds=600))

        loud = [ask("loud") for _ in range(3)]
        quiet = ask("quiet")
        await settled()
        assert waiting.held() == {"loud": 1, "quiet": 1}
        second, other = ask("quiet"), ask("other")
        await settled()
        quiet.cancel()
        await asyncio.wait([quiet])
        await settled()
        assert waiting.held() == {"loud": 1, "quiet": 1}  # of equals, the one that waits longest
        second.cancel()
        await asyncio.wait([second])
        await settled()
        assert waiting.held() == {"loud": 1, "other": 1}
        for task in (*loud, other):
            task.cancel()
        await asyncio.wait([*loud, other])
        assert waiting.held() == {}

    async def settled() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.run(crowd())
    waiting.close()
    eventually(lambda: not below(), what="the processes are gone")

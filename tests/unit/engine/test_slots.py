"""Slots bound what a process carries out at once, and are given in turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest

from planq.shared.kernel.states import Priority
from planq.worker.engine.slots import Party, Shares, Slots, bulk_slots

BULK = Party(priority=Priority.BULK)


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with asyncio.timeout(5):
            await story()

    asyncio.run(inside())


async def settle() -> None:
    """Let everything go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_no_more_is_reserved_than_is_free() -> None:
    slots = Slots(3)
    assert (slots.reserve(2), slots.reserve(2), slots.reserve(1), slots.reserve(-1)) == (2, 1, 0, 0)
    slots.release(2)
    assert slots.free() == 2


def test_whoever_waits_takes_all_that_has_become_free_by_then() -> None:
    async def story() -> None:
        slots = Slots(4)
        assert await slots.wait(10) == 4
        waiting = asyncio.ensure_future(slots.wait(3))
        await settle()
        assert not waiting.done()
        slots.release()
        slots.release()
        assert await waiting == 2, "one claim of two, not two claims"
        assert slots.free() == 0

    play(story)


def test_slots_are_given_in_turn_and_nobody_overtakes() -> None:
    async def story() -> None:
        slots = Slots(2)
        assert slots.reserve(2) == 2
        served: list[str] = []

        async def wait(name: str, most: int) -> None:
            await slots.wait(most)
            served.append(name)

        waiting = [asyncio.ensure_future(wait(name, most)) for name, most in (("a", 1), ("b", 2), ("c", 1))]
        await settle()
        slots.release(2)
        assert slots.reserve(1) == 0, "others wait for theirs"
        await settle()
        assert served == ["a", "b"]
        slots.release()
        await asyncio.gather(*waiting)
        assert served == ["a", "b", "c"]

    play(story)


def test_bulk_work_takes_its_share_and_leaves_the_rest() -> None:
    async def story() -> None:
        slots = Slots(4, 3)
        assert slots.reserve(4, BULK) == 3
        assert (slots.free(BULK), slots.free()) == (0, 1)
        bulk = asyncio.ensure_future(slots.wait(2, BULK))
        await settle()
        assert slots.reserve(2) == 1, "bulk work that waits keeps nobody interactive"
        interactive = asyncio.ensure_future(slots.wait())
        await settle()
        slots.release(1, BULK)
        await settle()
        assert (interactive.done(), bulk.done()) == (True, False)
        slots.release(2, BULK)
        assert await bulk == 2
        slots.release(2)
        slots.release(2, BULK)
        assert (slots.free(), slots.free(BULK)) == (4, 3)

    play(story)


def test_a_slot_that_bulk_work_was_called_for_may_be_gone_before_it_comes() -> None:
    async def story() -> None:
        slots = Slots(1, 1)
        assert slots.reserve(1) == 1
        bulk = asyncio.ensure_future(slots.wait(1, BULK))
        await settle()
        slots.release()
        assert slots.reserve(1) == 1, "somebody interactive is quicker"
        interactive = asyncio.ensure_future(slots.wait())
        await asyncio.sleep(0)
        slots.release()
        await settle()
        assert (interactive.done(), bulk.done()) == (True, False)
        slots.release()
        assert await bulk == 1

    play(story)


def test_one_who_gives_up_waiting_holds_up_nobody_behind() -> None:
    """Also when the call has come already: a slot that is free then belongs to the next."""

    async def story() -> None:
        slots = Slots(1)
        assert slots.reserve(1) == 1
        first, second, third = (asyncio.ensure_future(slots.wait()) for _ in range(3))
        await settle()
        second.cancel()
        slots.release()
        first.cancel()
        assert await third == 1
        assert first.cancelled()
        assert second.cancelled()
        slots.release()
        assert slots.free() == 1

    play(story)


A, B = Party("a"), Party("b")


def slow(party: Party) -> Party:
    return replace(party, is_slow=True)


def test_a_slot_that_comes_free_goes_to_the_tenant_that_holds_the_fewest() -> None:
    """However many wait for another one, and however long."""

    async def story() -> None:
        slots = Slots(8)
        assert slots.reserve(8, A) == 8
        served: list[str] = []

        async def wait(party: Party) -> None:
            await slots.wait(1, party)
            served.append(party.tenant)

        waiting = [asyncio.ensure_future(wait(party)) for party in [A] * 8 + [B] * 8]
        await settle()
        assert slots.is_wanted_from(A)
        for _ in range(4):
            slots.release(1, A)
            await settle()
        assert (served, slots.is_wanted_from(A)) == (["b"] * 4, False)
        for party in (A, B, A, B):
            slots.release(1, party)
            await settle()
        assert Counter(served) == {"b": 6, "a": 2}
        for one in waiting:
            one.cancel()

    play(story)


def test_a_tenant_alone_has_all_slots_and_no_more() -> None:
    slots = Slots(16)
    assert (slots.reserve(20, A), slots.free(A), slots.free(slow(A))) == (16, 0, 0)
    slots.release(16, A)
    assert slots.reserve(20, slow(A)) == 16


def test_a_tenant_that_holds_next_to_nothing_finds_a_slot_while_another_holds_all() -> None:
    async def story() -> None:
        slots = Slots(16)
        assert slots.reserve(16, slow(A)) == 16
        waiting = asyncio.ensure_future(slots.wait(1, slow(A)))
        await settle()
        assert await slots.wait(10, B) == 2, "an eighth, however much it asks for"
        assert (slots.free(B), slots.free(slow(B))) == (0, 0)
        slots.release(2, B)
        await settle()
        assert not waiting.done(), "the reserve is for those who hold less"
        slots.release(1, slow(A))
        assert await waiting == 1

    play(story)


def test_what_is_not_slow_need_not_wait_for_what_is() -> None:
    async def story() -> None:
        slots = Slots(16)
        assert slots.reserve(16, slow(A)) == 16
        fetches = asyncio.ensure_future(slots.wait(4, slow(A)))
        await settle()
        assert (await slots.wait(1, A), slots.free(A)) == (1, 1)
        slots.hand_over(1, A, slow(A))
        assert slots.free(A) == 1
        slots.release(1, slow(A))
        await settle()
        assert not fetches.done(), "the reserve is none of theirs"
        slots.release(1, slow(A))
        assert await fetches == 1

    play(story)


def test_of_one_tenant_the_oldest_job_goes_first_whatever_it_waits_for_and_none_is_passed_by_for_ever() -> None:
    """Also the rest of a wide job, which comes to wait anew, and what is slow beside what is not."""
    now, served = [0.0], list[int]()
    first, second, third, fourth = (UUID(int=age) for age in range(1, 5))

    async def story() -> None:
        slots = Slots(2, clock=lambda: now[0])
        assert slots.reserve(2, A) == 2

        async def wait(job_id: UUID, party: Party = A) -> None:
            await slots.wait(1, party, job_id)
            served.append(job_id.int)

        waiting = [asyncio.ensure_future(wait(third)), asyncio.ensure_future(wait(second, slow(A)))]
        await settle()
        waiting.append(asyncio.ensure_future(wait(first)))
        await settle()
        now[0] = 59.0
        waiting.append(asyncio.ensure_future(wait(first)))
        waiting.append(asyncio.ensure_future(wait(fourth)))
        await settle()
        now[0] = 61.0
        waiting.append(asyncio.ensure_future(wait(first)))
        await settle()
        for _ in waiting:
            slots.release(1, A)
            await settle()
        await asyncio.gather(*waiting)

    play(story)
    assert served == [1, 1, 2, 3, 4, 1]


def test_bulk_work_of_the_smaller_share_waits_for_interactive_work() -> None:
    async def story() -> None:
        slots = Slots(4, 3)
        assert slots.reserve(4, A) == 4
        bulk = asyncio.ensure_future(slots.wait(1, replace(B, priority=Priority.BULK)))
        await settle()
        assert not slots.is_wanted_from(A)
        interactive = asyncio.ensure_future(slots.wait(1, A))
        await settle()
        slots.release(1, A)
        await settle()
        assert (interactive.done(), bulk.done()) == (True, False)
        slots.release(1, A)
        assert await bulk == 1

    play(story)


def test_the_share_of_bulk_work_is_one_slot_at_least_and_leaves_one_where_it_can() -> None:
    assert [bulk_slots(slots) for slots in (1, 2, 4, 300)] == [1, 1, 3, 225]


def served_of(rule: Shares, count: int, waiting: Sequence[Party]) -> list[str]:
    """Let A hold all slots, then give them back one by one; returns who got them, each of whom keeps it."""
    served: list[str] = []

    async def story() -> None:
        slots = Slots(count, shares=rule)
        assert slots.reserve(count, A) == count

        async def wait(party: Party) -> None:
            await slots.wait(1, party)
            served.append(party.tenant)

        lines = [asyncio.ensure_future(wait(party)) for party in waiting]
        await settle()
        for _ in range(count):
            slots.release(1, A)
            await settle()
        for one in lines:
            one.cancel()

    play(story)
    return served


def test_tenants_share_slots_by_their_weights() -> None:
    served = served_of(Shares({"a": 3.0}, most=1.0), 8, [A] * 8 + [B] * 8)
    assert Counter(served) == {"a": 6, "b": 2}


def test_a_tenant_holds_at_most_its_part_while_another_waits_whatever_it_weighs() -> None:
    heavy = Shares({"a": 100.0}, most=0.5)
    assert Counter(served_of(heavy, 8, [A] * 8 + [B] * 8)) == {"a": 4, "b": 4}
    assert Counter(served_of(heavy, 8, [A] * 8)) == {"a": 8}, "nobody else waits"


def test_a_tenant_that_holds_more_than_its_part_ends_its_chains_while_another_waits() -> None:
    async def story() -> None:
        slots = Slots(8, shares=Shares({"a": 100.0}, most=0.5))
        assert slots.reserve(5, A) == 5
        assert [slots.reserve(1, B) for _ in range(4)] == [1, 1, 1, 0]
        assert not slots.is_wanted_from(A), "nobody waits"
        waiting = asyncio.ensure_future(slots.wait(1, B))
        own = asyncio.ensure_future(slots.wait(1, A))
        await settle()
        assert (slots.is_wanted_from(A), slots.is_wanted_from(B)) == (True, False)
        slots.release(1, A)
        assert await waiting == 1
        assert not own.done()
        own.cancel()

    play(story)


class Looks(Slots):
    """Slots that count how often they look at what one party may take or holds."""

    looks = 0

    def _left(self, party: Party) -> int:
        self.looks += 1
        return super()._left(party)

    def _share(self, tenant: str) -> float:
        self.looks += 1
        return super()._share(tenant)


def test_a_grant_looks_at_as_few_parties_however_many_tenants_wait() -> None:
    """It took 205 us with 375 tenants that waited, because it looked at each of them."""

    async def looks(tenants: int) -> int:
        slots = Looks(16)
        assert slots.reserve(16, A) == 16
        parties = [Party(f"tenant-{number}") for number in range(tenants)]
        waiting = [asyncio.ensure_future(slots.wait(1, party)) for party in parties]
        await settle()
        slots.looks = 0
        slots.release(1, A)
        assert slots.is_wanted_from(A)
        await settle()
        for one in waiting:
            one.cancel()
        return slots.looks

    async def story() -> None:
        assert await looks(400) <= await looks(20)

    play(story)


def next_by_the_rule(slots: Slots) -> object:
    """Return the line that gets the next slot, found by looking at all of them, in the order in which they began."""
    waiting = sorted((line for own in slots._lines.values() for line in own.values()), key=lambda line: line.number)
    able = [line for line in waiting if slots._left(line.party)]
    if not able:
        return None
    first = min(able, key=lambda line: slots._rank(line.party)).party
    alike = [line for line in able if (line.party.tenant, line.party.priority) == (first.tenant, first.priority)]
    return min(alike, key=lambda line: line.turns[0])


@pytest.mark.parametrize("seed", range(30))
def test_the_next_is_the_one_whom_the_rule_names(seed: int) -> None:
    """Whatever comes, waits, goes on as another party, gives up and ends, in any order."""
    draw = Random(seed)
    weights = {f"t{number}": draw.choice([0.5, 1.0, 3.0, 100.0]) for number in range(6)}
    parties = [
        Party(tenant, priority, is_slow=is_slow)
        for tenant in weights
        for priority in Priority
        for is_slow in (False, True)
    ]

    async def story() -> None:
        slots = Slots(24, 12, clock=lambda: 0.0, shares=Shares(weights, most=0.5))
        held: list[Party] = []
        waiting: dict[UUID, tuple[Party, asyncio.Future[int]]] = {}
        grants = named = 0
        for number in range(400):
            match draw.randrange(6):
                case 0 | 1 | 2:
                    party, job_id = draw.choice(parties), UUID(int=number)
                    waiting[job_id] = party, asyncio.ensure_future(slots.wait(1, party, job_id))
                case 3 if held:
                    slots.release(1, held.pop(draw.randrange(len(held))))
                case 4 if held:
                    party = held.pop(draw.randrange(len(held)))
                    held.append(replace(party, is_slow=not party.is_slow))
                    slots.hand_over(1, party, held[-1])
                case 5 if waiting:
                    waiting[draw.choice(list(waiting))][1].cancel()
            named += next_by_the_rule(slots) is not None
            assert slots._next() is next_by_the_rule(slots)
            await settle()
            for job_id in [job_id for job_id, (_, turn) in waiting.items() if turn.done()]:
                party, turn = waiting.pop(job_id)
                if not turn.cancelled():
                    grants += 1
                    held.append(party)
            assert slots._next() is next_by_the_rule(slots)
        assert min(grants, named) > 10

    play(story)


def test_while_slots_are_closed_none_is_given_out_and_who_has_waited_goes_on_afterwards() -> None:
    async def story() -> None:
        slots = Slots(2)
        assert slots.reserve(2) == 2
        told: list[str] = []

        async def alone() -> None:
            async with slots.closed(60) as are_back:
                assert are_back
                told.append("alone")
                slots.exceed(3)
                await go.wait()
                slots.release(3)

        async def wait() -> None:
            await slots.wait()
            told.append("served")

        go = asyncio.Event()
        tasks = [asyncio.create_task(one) for one in (alone(), wait())]
        await settle()
        assert slots.is_wanted_from(Party())
        slots.release()
        await settle()
        assert (told, slots.reserve(1)) == ([], 0), "the other slot is not back"
        slots.release()
        await settle()
        assert (told, slots.reserve(1), slots.free()) == (["alone"], 0, 0)
        go.set()
        await asyncio.gather(*tasks)
        assert told == ["alone", "served"]
        assert slots.free() == 1
        assert not slots.is_wanted_from(Party())

    play(story)


def test_who_no_longer_waits_for_all_slots_opens_them_again() -> None:
    async def story() -> None:
        slots = Slots(1)
        assert slots.reserve(1) == 1

        async def alone() -> None:
            async with slots.closed(60):
                raise AssertionError("a slot is held")

        task = asyncio.create_task(alone())
        await settle()
        task.cancel()
        await asyncio.wait({task})
        slots.release()
        assert slots.reserve(1) == 1

    play(story)


def test_slots_that_are_not_all_back_in_time_are_given_out_again() -> None:
    async def story() -> None:
        slots = Slots(2)
        assert slots.reserve(1) == 1
        waiting = asyncio.create_task(slots.wait(2))
        await waiting
        later = asyncio.create_task(slots.wait())
        async with slots.closed(0.0) as are_back:
            slots.release()
            await settle()
            assert (are_back, later.done()) == (False, False)
        assert await later == 1

    play(story)

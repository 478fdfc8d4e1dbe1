"""From one wake-up to the next: claim, carry out, publish what others should do, go on with the rest.

One follow-up that this process can take goes on in the same Celery task without a broker hop (a fused chain); the
others are published in one batch. A budget bounds how long a chain may hold its Celery task.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol
from uuid import UUID

from planq.shared.kernel.claims import Claim
from planq.shared.kernel.follow_ups import after_end
from planq.shared.kernel.ids import PLAN, StepRef
from planq.shared.kernel.job_store import JobStore
from planq.shared.kernel.states import TERMINAL_JOB, Effect, Pool
from planq.shared.kernel.wakes import Origin, Publisher, TaskLinks, Tracker, Wake
from planq.shared.platform.errors import DatabaseUnavailable, ExecutionFailed, InternalFault, OutcomeUnknown
from planq.shared.platform.values.backoff import pause_after
from planq.worker.engine.chain import (
    Chain,
    WakeOutcome,
    Work,
    after_release,
    in_messages,
    own_share,
)
from planq.worker.engine.lease import is_looked_into
from planq.worker.engine.persist import persist
from planq.worker.engine.running import AttemptState, InFlightWork, RunningAttempt, attempt_of
from planq.worker.engine.slots import ANYBODY, EQUAL_SHARES, Party, Shares, Slots

_log = logging.getLogger("planq.engine")

_HAND_ON_SECONDS = 2.0
"""The pause before a wake-up that could not be claimed is published again. Where nobody reaches the database the
wake-ups go round; the pause keeps that cheap."""

_HAND_ON_AT_ONCE_SECONDS = 0.25
"""The same where only this process seems to have lost the database."""

_FIRST_HOP_SECONDS, _LONGEST_HOP_SECONDS = 0.01, 0.5
_HOPS_KEPT = 10_000
"""A wake-up that reaches a worker without its tool is published again at once: of workers that wait for messages, a
broker serves the one first that has waited for longest. Where the same one comes back it waits, longer each time."""

_STOP_SECONDS = 5.0
"""What the answers of the database are waited for when the process stops."""


class Handler(Protocol):
    """Carries out the attempts of one kind, and ends them in the database.

    The loop knows nothing else of plans, tools and models.
    """

    def carry_out(self, claim: Any, chain: Chain, /) -> Coroutine[Any, Any, WakeOutcome]:
        """Carry out the attempt and store its outcome, taking over what `chain` may."""
        ...

    def break_off(self, claim: Any, failure: ExecutionFailed, chain: Chain, /) -> Coroutine[Any, Any, WakeOutcome]:
        """End an attempt that failed in planq: what becomes of it is decided as after any other failure."""
        ...


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """`fuse_seconds`: how long one Celery task may go on with follow-ups, far below any broker's patience.

    `slots` bounds what is carried out at once, over all messages, `bulk_slots` what is bulk of it; None: as much.
    Tenants share them as `shares` says. `drain_seconds`: how long suspects wait for what else runs, as long as a call
    may take.
    """

    pool: Pool
    slots: int = 300
    bulk_slots: int | None = None
    fuse_seconds: float = 60.0
    shares: Shares = EQUAL_SHARES
    drain_seconds: float = 300.0


class Loop:
    """Carries out wake-ups for one process; safe to run many at once on one event loop."""

    def __init__(
        self,
        settings: LoopSettings,
        *,
        store: JobStore,
        handlers: Mapping[int, Handler],
        publisher: Publisher,
        tracker: Tracker,
        in_flight: InFlightWork,
        workers: Callable[[], int] = lambda: 1,
        is_slow: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`handlers` has that of each stage under its index, and that of all steps under 0.

        `workers` says how many workers of this pool live, as far as is known; `is_slow` says of a tool by its name
        whether its calls wait for others.
        """
        self._settings = settings
        self.slots = Slots(settings.slots, settings.bulk_slots, shares=settings.shares)
        self._workers = workers
        self._is_slow = is_slow
        self._store = store
        self._handlers = handlers
        self._steps = handlers[0]
        self._publisher = publisher
        self._tracker = tracker
        self.in_flight = in_flight
        self._is_winding_down = False
        self._hops = OrderedDict[StepRef, int]()

    async def run(self, wake: Wake) -> WakeOutcome:
        """Carry out a wake-up and what follows from it here; returns the outcome of the wake-up itself.

        A wake-up that has nothing to claim is harmless; one that cannot be claimed because the database does not
        answer is published again. Raises `DatabaseUnavailable` when the database stays away from work that has begun:
        the lease then decides. When the surrounding asyncio task is cancelled, the work at hand is given back first.
        """
        work, until = Work(), time.monotonic() + self._settings.fuse_seconds
        may_go_on = lambda: time.monotonic() < until and not self._is_winding_down  # noqa: E731
        chain = self._chain(may_go_on, self._party(wake))
        if wake.more:
            first = work.begin(chain, self._run_steps(work, chain, wake.each))
        else:
            first = work.begin(chain, self._run_chain(work, chain, wake, tracked=False, origin=wake.links))
        try:
            await work.done()
        except asyncio.CancelledError:
            await work.stop(_STOP_SECONDS)
            raise
        return first.result()

    async def run_suspects(self, may_begin: Callable[[], bool] = lambda: True) -> int:
        """Carry out a group of suspects while nothing else is in flight here; returns how many there were.

        What runs here ends first, and goes on elsewhere; until the suspects have ended, too, no slot is given out.
        Claims nothing where that takes longer than `drain_seconds`, or unless it `may_begin` by then. Raises and is
        cancelled as `run`.
        """
        work, chain = Work(), self._chain(lambda: False)
        async with self.slots.closed(self._settings.drain_seconds) as are_back:
            if not are_back or self._is_winding_down or not may_begin():
                _log.info("quarantine_put_off", extra={"in_flight": self.in_flight.count})
                return 0
            with self.in_flight.claiming_any():
                claims = await self.in_flight.claim(self._store.claim_suspects, self._settings.pool)
                self.in_flight.hold(claims)
            self.slots.exceed(len(claims))
            chain.held = len(claims)
            for claim in claims:
                begun = {"job": str(claim.ref.job_id), "attempt": claim.attempt}
                _log.warning("suspect_begun", extra={**begun, "suspects": len(claims)})
                self._branch(work, chain, claim)
            try:
                await work.done()
            except asyncio.CancelledError:
                await work.stop(_STOP_SECONDS)
                raise
        return len(claims)

    def interrupt(self, job_id: UUID) -> None:
        """Stop whatever runs here for a job that was cancelled; call it on the engine's event loop."""
        self.in_flight.cut_off_job(job_id)

    def wind_down(self) -> None:
        """Begin nothing new here: follow-ups are published from now on, for workers that stay."""
        self._is_winding_down = True

    def _chain(self, may_go_on: Callable[[], bool], party: Party = ANYBODY, held: int = 0) -> Chain:
        return Chain(self._settings.pool, self.slots, may_go_on, self._workers, held, party)

    def _party(self, wake: Wake) -> Party:
        is_slow = not wake.ref.is_stage and self._is_slow(wake.name or "")
        return Party(wake.tenant, wake.priority, is_slow)

    async def _run_steps(self, work: Work, chain: Chain, wakes: Sequence[Wake]) -> WakeOutcome:
        begun, rest = 0, wakes
        links = {wake.ref: wake.links for wake in wakes}
        while rest and not (chain.is_stopped or (self._is_winding_down and rest is not wakes)):
            claims = await self._claim(chain, rest)
            if len(claims) < chain.asked:
                work.spawn(self._hand_on(rest[: chain.asked], claims))
            rest = rest[chain.asked :]
            for claim in claims:
                self._branch(work, chain, claim, links.get(claim.ref))
            chain.keep(0)
            begun += len(claims)
        if rest:
            await self._publish(rest)
        return WakeOutcome(steps=begun)

    def _branch(
        self, work: Work, chain: Chain, claim: Claim, origin: Origin | TaskLinks | None = None
    ) -> asyncio.Task[WakeOutcome]:
        """Carry out a claim beside a chain, which gives it one of its slots; returns the task that does."""
        chain.held -= 1
        branch = self._chain(chain.may_go_on, chain.party, held=1)
        branch.units = chain.units
        return work.begin(branch, self._run_chain(work, branch, claim, tracked=True, origin=origin))

    async def _run_chain(
        self, work: Work, chain: Chain, first: Claim | Wake, *, tracked: bool, origin: Origin | TaskLinks | None
    ) -> WakeOutcome:
        """Carry out a claim, or what a wake-up brings, then what is taken over from it, and so on.

        Returns the outcome of the first. What is `tracked`, and everything that follows, has no Celery task of its
        own; `origin` is that of the first.
        """
        outcome: WakeOutcome | None = None
        following: Claim | None = None
        if isinstance(first, Claim):
            following = first
            if chain.is_stopped:  # before it began
                await self._release_all(chain, [first])
                following = None
        elif chain.is_stopped:
            await self._publish([first])
        elif claims := await self._claim(chain, [first]):
            following = claims[0]
        else:
            work.spawn(self._hand_on([first], claims))
        chain.is_asking = False
        while following is not None:
            carried = await self._carry_out(chain, following, tracked=tracked or outcome is not None, origin=origin)
            if carried.has_ended and following.is_awaited:
                carried = await self._serve_end(following, carried)
            outcome = outcome or carried
            following = await self._go_on(work, chain, carried)
            origin = carried.origin
        return outcome or WakeOutcome()

    async def _serve_end(self, claim: Claim, carried: WakeOutcome) -> WakeOutcome:
        """Serve whoever waits for the job of a claim, which has ended; returns what that led to, too.

        Where the database does not answer, the sweeper does it.
        """
        try:
            followed = await persist(self._store.serve_end, claim.job_id)
        except DatabaseUnavailable:
            _log.warning("end_not_served", extra={"job": str(claim.job_id)})
            return carried
        return replace(carried, wakes=[*carried.wakes, *after_end(followed, claim)])

    async def _go_on(self, work: Work, chain: Chain, carried: WakeOutcome) -> Claim | None:
        """See to all that an outcome led to; returns what the chain carries out next, None when it ends here."""
        taken, wakes = carried.taken, carried.wakes
        if chain.is_stopped or self._is_winding_down:
            await self._publish(wakes)
            await self._release_all(chain, taken)
            return None
        mine, others = self._split(chain, len(taken), wakes) if wakes else ((), ())
        for place, claim in enumerate(taken[1:], 1):
            self._branch(work, chain, claim, carried.origin and replace(carried.origin, place=place))
        if chain.held > 1:
            chain.keep(1)
        if mine:
            beside = self._chain(chain.may_go_on, self._party(mine[0]))
            work.begin(beside, self._run_steps(work, beside, mine))
        if others and (child := self._own_child(chain, others)) is not None:
            beside = self._chain(chain.may_go_on, self._party(child))
            work.begin(beside, self._run_chain(work, beside, child, tracked=True, origin=child.links))
            others = [wake for wake in others if wake is not child]
        if others:
            work.spawn(self._publish(others))
        return taken[0] if taken else None

    def _split(self, chain: Chain, taken: int, wakes: Sequence[Wake]) -> tuple[Sequence[Wake], Sequence[Wake]]:
        """Return the follow-ups that this process carries out as well, and those for anybody."""
        if not chain.goes_on:
            return (), wakes
        ours = [wake for wake in wakes if not wake.ref.is_stage and wake.pool == self._settings.pool]
        share = own_share(taken + len(ours), taken + self.slots.free(chain.party), self._workers()) - taken
        mine = ours[: max(share, 0)]
        kept = {id(wake) for wake in mine}
        return mine, [wake for wake in wakes if id(wake) not in kept]

    def _own_child(self, chain: Chain, wakes: Sequence[Wake]) -> Wake | None:
        if self._settings.pool != Pool.IO or not self.slots.free(chain.party) or not chain.goes_on:
            return None
        return next((wake for wake in wakes if wake.ref.index == PLAN), None)

    async def _carry_out(
        self, chain: Chain, claim: Claim, *, tracked: bool, origin: Origin | TaskLinks | None = None
    ) -> WakeOutcome:
        """Do what was claimed; what is `tracked` is shown to monitors from here."""
        running = self.in_flight.begin(claim)
        if running is None:
            return WakeOutcome()
        chain.running, handler = running, self._handlers.get(claim.ref.index, self._steps)
        # For whom the claim holds its slot, its wake-up may not have known.
        party = Party(claim.tenant_id, claim.priority, claim.effect is not Effect.PURE)
        if party != chain.party:
            chain.become(party)
        started = time.monotonic()
        carried = WakeOutcome(attempt=claim.attempt)
        is_settled = True
        try:
            if tracked:
                self._tracker.started(claim, origin)
            try:
                carried = await handler.carry_out(claim, chain)
            except DatabaseUnavailable:
                raise
            except Exception as error:
                # A defect of ours ends the attempt with a reason: left alone it would only recur.
                _log.exception("defect", extra={"attempt": claim.attempt})
                # The text of a foreign exception may hold anything, so it stays in the log.
                fault = InternalFault(f"planq failed here ({type(error).__name__}); the cause is in the worker's log")
                carried = await handler.break_off(claim, fault, chain)
        except asyncio.CancelledError:
            if running.state is AttemptState.CUT_OFF:
                # The database already says that this attempt is over; its Celery task ends normally.
                running.uncancel()
            elif running.state is AttemptState.FENCED:
                is_settled = False
                carried = await self._stand_back(chain, claim, running)
                is_settled = True
            else:
                is_settled = False  # while it is not known to be given back: a second cancellation ends this wait
                is_settled = await asyncio.shield(self._give_back(chain, claim))
                raise
        except BaseException:
            is_settled = False
            raise
        finally:
            chain.running = None
            self.in_flight.end(running, is_settled=is_settled)
            if tracked:
                self._tracker.ended(claim, origin, carried.error, time.monotonic() - started)
        if carried.is_late:
            self.in_flight.count_late(running.attempt)
        before = claim
        for step in carried.unit:
            self._tracker.started(step.claim, Origin(before, 1))
            self._tracker.ended(step.claim, Origin(before, 1), None, step.seconds)
            before = step.claim
        return carried

    async def _claim(self, chain: Chain, wakes: Sequence[Wake]) -> Sequence[Claim]:
        """Wait for slots and claim as many; what was claimed for a chain that is stopped meanwhile is given back."""
        chain.is_asking = False
        try:
            chain.asked = chain.held = await self.slots.wait(len(wakes), chain.party, wakes[0].job_id)
        except asyncio.CancelledError:
            await asyncio.shield(self._publish(wakes))
            raise
        asked = wakes[: chain.asked]
        with self.in_flight.claiming([wake.ref for wake in asked]) as places:
            claims = await self._claim_or_republish(chain, asked)
            self.in_flight.hold(claims, places)
        if chain.is_stopped:
            await self._release_all(chain, claims)
            return ()
        return claims

    async def _claim_or_republish(self, chain: Chain, wakes: Sequence[Wake]) -> Sequence[Claim]:
        """Claim, or publish the wake-ups again: perhaps it is only this process that does not reach the database.

        Kept here, they would wait for this process while others stand idle, for the broker goes on sending them.
        Given up, they would be published again by and by, each time later than the time before, and everything that
        was woken during an outage would wait for long after it.
        """
        while True:
            try:
                chain.is_asking = True
                return await self._ask_for(wakes)
            except DatabaseUnavailable as error:
                chain.is_asking = False
                await asyncio.sleep(_HAND_ON_AT_ONCE_SECONDS if self.in_flight.is_stalled else _HAND_ON_SECONDS)
                if await self._publish(wakes):
                    _log.warning("wake_handed_on", extra={"cause": error.message})
                    return ()
            finally:
                chain.is_asking = False

    async def _hand_on(self, wakes: Sequence[Wake], claims: Sequence[Claim]) -> None:
        """Publish wake-ups again that nobody claimed here because other workers have the tools."""
        held = {claim.ref for claim in claims}
        steps = {wake.ref: wake for wake in wakes if not wake.ref.is_stage and wake.ref not in held}
        if not steps:
            return
        try:
            others = await self._store.hand_on(list(steps))
        except DatabaseUnavailable:
            return  # the sweeper publishes them in their time
        if others:
            await self._pause_hop(others)
            await self._publish([steps[ref] for ref in others])

    async def _pause_hop(self, refs: Sequence[StepRef]) -> None:
        """Wait as long as it is time for before wake-ups of these steps are handed on: not at all the first time."""
        hops = 0
        for ref in refs:
            hops = max(hops, before := self._hops.pop(ref, 0))
            self._hops[ref] = before + 1
        while len(self._hops) > _HOPS_KEPT:
            self._hops.popitem(last=False)
        if hops and not self._is_winding_down:
            await asyncio.sleep(pause_after(hops, _FIRST_HOP_SECONDS, _LONGEST_HOP_SECONDS))

    async def _ask_for(self, wakes: Sequence[Wake]) -> Sequence[Claim]:
        return await self.in_flight.claim(self._store.claim, [wake.ref for wake in wakes])

    async def _publish(self, wakes: Sequence[Wake]) -> bool:
        return await self._publisher.publish(in_messages(wakes, self._workers()))

    async def _give_back(self, chain: Chain, claim: Claim) -> bool:
        """This process stops in the middle: let another one continue at once, unless a repeat could do harm.

        Returns False where that is left to the sweeper, because the database does not answer.
        """
        try:
            if claim.effect is not Effect.UNSAFE:
                await self._release(claim)
                return True
            if is_looked_into(claim) and self.in_flight.writes.is_acting(attempt_of(claim)):
                return False  # a thread of it runs until the process has ended: the sweeper sees that and says so
            carried = await self._handlers.get(claim.ref.index, self._steps).break_off(
                claim, _unknown(claim, "the worker stopped"), chain
            )
            await self._publish(carried.wakes)
        except DatabaseUnavailable:
            _log.warning("work_not_given_back", extra={"attempt": claim.attempt})
            return False
        return True

    async def _stand_back(self, chain: Chain, claim: Claim, running: RunningAttempt) -> WakeOutcome:
        """The call was stopped, for the lease was over: say so as soon as the database answers.

        What others have taken over by then is theirs.
        """
        running.uncancel()
        try:
            await self.in_flight.until_held()
            running.move(AttemptState.HELD)
            if claim.effect is not Effect.UNSAFE:
                await persist(self._release, claim)
                return WakeOutcome(claim.attempt)
            if is_looked_into(claim):
                await self.in_flight.writes.until_stopped(attempt_of(claim))
            stopped = _unknown(claim, "the worker could not renew its lease and stopped the call")
            return await self._handlers.get(claim.ref.index, self._steps).break_off(claim, stopped, chain)
        except asyncio.CancelledError:
            if running.state is not AttemptState.CUT_OFF:
                raise  # this process stops, and the database is still away: the lease decides
            running.uncancel()
            return WakeOutcome(claim.attempt)

    async def _release(self, claim: Claim) -> None:
        result = await self._store.release(claim)
        await self._publish(after_release(claim, result))
        if result.job_status in TERMINAL_JOB and claim.is_awaited:
            await self._publish(after_end(await self._store.serve_end(claim.job_id), claim))

    async def _release_all(self, chain: Chain, claims: Sequence[Claim]) -> None:
        chain.is_asking = True  # a chain that is stopped now must see this through
        for claim in claims:
            try:
                await self._release(claim)
            except DatabaseUnavailable:
                _log.warning("work_not_given_back", extra={"attempt": claim.attempt})
            finally:
                self.in_flight.drop(claim)


def _unknown(claim: Claim, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"{why} while the unsafe tool {claim.name!r} ran; whether it took effect is unknown")

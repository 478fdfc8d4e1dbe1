"""A job in memory that moves only by `advance`: the store's part is played by a dictionary.

Tests drive it with events in any order; it carries out the bulk effects as the store does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from planq.shared.kernel.states import TERMINAL_STEP, UNSTARTED_STEP, JobStatus, OnFailure, StepStatus
from planq.shared.kernel.steps import PlannedStep
from planq.testing.model import events
from planq.testing.model.advance import advance
from planq.testing.model.events import Effect, Event, JobView, Neighbourhood, Rejected, StepView

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def initial_steps(planned: Sequence[PlannedStep]) -> tuple[StepView, ...]:
    return tuple(
        StepView(s.index, StepStatus.PENDING if s.depends_on else StepStatus.READY, pending=len(s.depends_on))
        for s in planned
    )


@dataclass
class SimulatedJob:
    """The state of one job, and everything that was dispatched."""

    dependents: dict[int, Sequence[int]] = field(default_factory=dict)
    inputs: dict[int, Sequence[int]] = field(default_factory=dict)
    paths: dict[int, int] = field(default_factory=dict)
    job: JobView = field(default_factory=lambda: JobView(JobStatus.QUEUED))
    steps: dict[int, StepView] = field(default_factory=dict)
    dispatched: list[int] = field(default_factory=list)
    least_window: int | None = None

    def apply(self, event: Event, index: int | None = None) -> tuple[Effect, ...]:
        """Advance by one event, on the step `index` if given; returns the effects."""
        before = dict(self.steps)
        effects = self._apply(event, index)
        if not (effects and isinstance(effects[0], Rejected)):
            self._keep_window(event, before, index)
        return effects

    def _keep_window(self, event: Event, before: dict[int, StepView], index: int | None) -> None:
        if isinstance(event, events.PlanAccepted):
            before = {n: step for n, step in before.items() if n not in {step.index for step in event.steps}}
        reopens = isinstance(event, events.ResumeRequested) and any(
            step.status in TERMINAL_STEP and self.steps[n].status not in TERMINAL_STEP for n, step in before.items()
        )
        if self.job.status is not JobStatus.EXECUTING:
            self.job = replace(self.job, places=None)
        elif isinstance(event, events.PlanAccepted) or reopens:
            self.job = replace(self.job, places=_places_of(self.job.open_steps, self.least_window))
        has_ended = index is not None and self.steps[index].status in (StepStatus.SUCCEEDED, StepStatus.FAILED)
        follows = has_ended and isinstance(
            event, events.StepSucceeded | events.StepFailed | events.StepLost | events.StepSettled | events.ToolMissed
        )
        _keep_window(before, self.steps, self.job.places, self.paths, follows=follows)

    def open_window(self) -> None:
        """Let held steps follow where there is room, as the sweeper does."""
        if not self.job.is_paused:
            _keep_window(dict(self.steps), self.steps, self.job.places, self.paths, follows=True)

    def adopt_window(self, held: Collection[int]) -> None:
        """Take over which steps are held: where several end at once, which of them comes first decides that."""
        assert len(held) == sum(step.held for step in self.steps.values())
        for index, step in self.steps.items():
            assert index not in held or step.status is StepStatus.READY
            self.steps[index] = replace(step, held=index in held)

    def _apply(self, event: Event, index: int | None = None) -> tuple[Effect, ...]:
        step = None if index is None else self.steps[index]
        dependents = () if index is None else tuple(self.steps[d] for d in self.dependents.get(index, ()))
        after, effects = advance(Neighbourhood(self.job, step, dependents), event, NOW)
        if effects and isinstance(effects[0], Rejected):
            assert after == Neighbourhood(self.job, step, dependents), "a rejected event changes nothing"
            return effects
        self.job = after.job
        for changed in (after.step, *after.dependents):
            if changed is not None:
                self.steps[changed.index] = changed
        for effect in effects:
            self._carry_out(effect)
        return effects

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case events.DispatchStep(index):
                self.dispatched.append(index)
            case events.SkipAfter(index):
                self._skip(self._doomed(index), StepStatus.SKIPPED)
            case events.SkipNeeding(index):
                self._skip_needing(index)
            case events.CancelUnfinished():
                self._end_unfinished(StepStatus.CANCELLED, StepStatus.CANCELLED)
            case events.ReopenUnfinished():
                self._reopen()
            case events.ExpireUnfinished():
                self._end_unfinished(StepStatus.SKIPPED, StepStatus.FAILED)
            case _:
                pass

    def _end_unfinished(self, pending: StepStatus, others: StepStatus) -> None:
        for index, step in self.steps.items():
            if step.status not in TERMINAL_STEP:
                end = pending if step.status is StepStatus.PENDING else others
                self.steps[index] = replace(step, status=end, asks=False)

    def _reopen(self) -> None:
        again = self._tried_again()
        waits: dict[int, int] = dict.fromkeys(self.steps, 0)
        for index in again:
            for dependent in self.dependents.get(index, ()):
                waits[dependent] += 1
        for index in again:
            status = StepStatus.PENDING if waits[index] else StepStatus.READY
            self.steps[index] = StepView(index, status, self.steps[index].attempt, waits[index])

    def _tried_again(self) -> set[int]:
        """Return the steps without success; where failures are recorded, those that were cut off with the job."""
        if self.job.on_failure is OnFailure.RECORD:
            return {index for index, step in self.steps.items() if step.status is StepStatus.CANCELLED}
        return {index for index, step in self.steps.items() if step.status is not StepStatus.SUCCEEDED}

    def unfinished(self) -> int:
        """Count the steps that a job which has ended tries again when it is resumed."""
        return len(self._tried_again())

    def joined(self) -> set[int]:
        return {index for index, step in self.steps.items() if step.joined}

    def _doomed(self, halted_at: int) -> set[int]:
        begun = {i for i, s in self.steps.items() if s.joined}
        later = {i for i, s in self.steps.items() if i > halted_at and s.status in UNSTARTED_STEP}
        doomed = (later - begun) | {halted_at}
        frontier = list(doomed)
        while frontier:
            for index in self.dependents.get(frontier.pop(), ()):
                if index not in doomed:
                    doomed.add(index)
                    frontier.append(index)
        return {i for i in doomed - begun if self.steps[i].status in UNSTARTED_STEP}

    def plan(self, planned: Sequence[PlannedStep]) -> tuple[StepView, ...]:
        """Take over the edges of a plan that is about to be accepted; returns its steps."""
        self.dependents |= {step.index: step.dependents for step in planned}
        self.inputs |= {step.index: step.inputs for step in planned}
        self.paths |= {step.index: step.path for step in planned}
        views = initial_steps(planned)
        self.steps |= {view.index: view for view in views}
        return views

    def _skip_needing(self, failed: int) -> None:
        doomed, frontier = {failed}, [failed]
        while frontier:
            ended = frontier.pop()
            for index in self.dependents.get(ended, ()):
                is_pending = self.steps[index].status is StepStatus.PENDING
                if index not in doomed and is_pending and ended in self.inputs.get(index, ()):
                    doomed.add(index)
                    frontier.append(index)
        for ended in doomed:
            for index in self.dependents.get(ended, ()):
                step = self.steps[index]
                if index in doomed or step.status is not StepStatus.PENDING:
                    continue
                status = StepStatus.READY if step.pending == 1 else StepStatus.PENDING
                self.steps[index] = replace(step, pending=step.pending - 1, status=status)
                if status is StepStatus.READY:
                    self.dispatched.append(index)
        self._skip(doomed - {failed}, StepStatus.SKIPPED)

    def _skip(self, indices: set[int], status: StepStatus) -> None:
        for index in indices:
            self.steps[index] = replace(self.steps[index], status=status)
        self._apply(events.StepsSkipped(len(indices)))

    def open_steps(self) -> int:
        """Count the steps that are not terminal, which the job's counter must equal."""
        return sum(step.status not in TERMINAL_STEP for step in self.steps.values())

    def in_status(self, *statuses: StepStatus) -> list[int]:
        return sorted(i for i, step in self.steps.items() if step.status in statuses)


_WERE_NOT_OUT = TERMINAL_STEP | {StepStatus.PENDING}
_NOT_OUT = _WERE_NOT_OUT | {StepStatus.WAITING}


def _places_of(open_steps: int, least: int | None) -> int | None:
    return None if least is None or open_steps <= least else least


def _keep_window(
    before: Mapping[int, StepView],
    steps: dict[int, StepView],
    places: int | None,
    paths: Mapping[int, int],
    *,
    follows: bool,
) -> None:
    """Hold ready steps beyond `places`, the longest path first; if `follows`, let held steps take free places."""
    for index, step in steps.items():
        if step.held and step.status is not StepStatus.READY:
            steps[index] = replace(step, held=False)
    if places is None:
        return
    ready = [n for n, step in sorted(steps.items()) if step.status is StepStatus.READY]
    ready.sort(key=lambda n: -paths.get(n, 0))
    fresh = [n for n in ready if not _was_out(before.get(n))]
    held = [n for n in ready if steps[n].held and n not in fresh]
    out = sum(step.status not in _NOT_OUT for step in steps.values()) - len(fresh) - len(held)
    for index in fresh:
        steps[index] = replace(steps[index], held=out >= places)
        out += out < places
    for index in held[: max(places - out, 0)] if follows else ():
        steps[index] = replace(steps[index], held=False)


def _was_out(step: StepView | None) -> bool:
    return step is not None and step.status not in _WERE_NOT_OUT

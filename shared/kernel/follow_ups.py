"""Whom to wake after a transition: what it has made ready, and what nobody has claimed with it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from planq.shared.kernel.claims import Claim
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.job_store import Consequence, TransitionResult
from planq.shared.kernel.states import STAGES, Pool, Priority
from planq.shared.kernel.wakes import TaskLinks, Wake, links_after


def after_step(ref: StepRef, result: TransitionResult, end: Claim | None = None) -> list[Wake]:
    """Return the wake-ups that an applied transition of the step `ref` asks for, beside what it took over.

    `end` is the attempt whose end it was, in a job of the same tree; None where nobody knows that any more.
    """
    priority = Priority.INTERACTIVE
    agent: str | None = None
    if end is not None:
        priority, agent = end.priority, end.agent_name
    tenant = "" if end is None else end.tenant_id
    is_stage = result.job_status in STAGES and not any(claim.ref.is_stage for claim in result.taken)
    links: Iterator[TaskLinks | None] = itertools.repeat(None)
    if end is not None and (count := len(result.children) + is_stage + len(result.ready)):
        taken = len(result.taken)
        links = map(links_after(end, taken + count).at, itertools.count(taken))
    wakes = [replace(child, priority=priority, links=next(links), tenant=tenant) for child in result.children]
    of_job: dict[str, Any] = {"priority": priority, "tenant": tenant}
    if is_stage and result.job_status is not None:
        again = result.stage_attempt + 1
        wakes.append(Wake.stage(ref.job_id, result.job_status, again, name=agent, links=next(links), **of_job))
    # Steps of the `io` pool come last: those that share a message then have indices of the group in a row.
    wakes += [
        Wake(replace(ref, index=step.index), step.pool, step.tool_name, links=next(links), **of_job)
        for step in sorted(result.ready, key=lambda step: step.pool == Pool.IO)
    ]
    return wakes


def after_end(followed: Consequence, end: Claim | None = None) -> Sequence[Wake]:
    """Return the wake-ups that the end of a job asks for where somebody waited for it; `end` as in `after_step`."""
    if (parent := followed.parent) is None:
        return followed.wakes
    wakes = after_step(parent.step, parent.result, end)
    return [replace(wake, priority=parent.priority, tenant=parent.tenant_id) for wake in wakes]

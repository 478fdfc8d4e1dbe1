"""What a phase of the run proves: the client's view, the ledger and the database held against each other."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import ledger
from tests.chaos.batches import Batches
from tests.chaos.client import Client
from tests.chaos.neighbours import Neighbour
from tests.chaos.observer import Observer
from tests.chaos.recovery import (
    Happened,
    Interruption,
    Spread,
    gaps,
    recovery_seconds,
    started_after_success,
    started_while_paused,
    successes,
    unrecorded_calls,
)
from tests.chaos.talks import Talks
from tests.chaos.verdict import defects

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Phase:
    """The findings of one phase. Lists name what is wrong and are empty in a good run.

    `messages` came in conversations, `wrong_talks` and `wrong_batches` say what is wrong with those and with batches,
    `wrong_neighbours` with the jobs of the tenant that floods and fetches hostile pages (`neighbours`).
    `lost` were accepted and do not exist, `stuck` exist and did not end, `doubled` exist and nobody submitted them.
    `repeated` are finished steps that ran again, by idempotency key. `recovery` is of interrupted attempts (see
    `recovery`), `unrecovered` those that never went on; `gap` is of attempts that were given back by a stopping
    worker, `given_back` their number. `unrecorded_model_calls` are jobs that asked their model more often than is
    recorded, beyond one call for each attempt at a stage that was cut off. `interrupted` counts attempts that a
    fault cut off. `held` are calls that took an interpreter for good, `freezes` those whose guard ended the process.
    """

    name: str
    seconds: float
    jobs: int
    steps: int
    jobs_by_kind: Mapping[str, int]
    messages: int
    batch_lines: int
    neighbours: int
    job_seconds: Spread
    lost: Sequence[str]
    stuck: Sequence[str]
    doubled: int
    wrong: Sequence[str]
    wrong_talks: Sequence[str]
    wrong_batches: Sequence[str]
    wrong_neighbours: Sequence[str]
    refused: Sequence[str]
    duplicate_unsafe_effects: Sequence[str]
    repeated_finished_steps: Sequence[str]
    started_while_paused: Sequence[str]
    unrecorded_model_calls: Sequence[str]
    broken_invariants: Sequence[str]
    outcome_unknown: int
    held: int
    freezes: int
    interrupted: int
    unrecovered: Sequence[str]
    recovery: Spread
    recovery_by_fault: Mapping[str, Spread]
    given_back: int
    gap: Spread
    client_trouble: Mapping[str, int]
    faults: Mapping[str, int] = field(default_factory=dict)
    must_know_every_outcome: bool = False

    @property
    def faults_found(self) -> list[str]:
        """Return one line for each thing that must not be."""
        lists: Mapping[str, Sequence[str]] = {
            "lost": self.lost,
            "stuck": self.stuck,
            "wrong": self.wrong,
            "wrong conversation": self.wrong_talks,
            "wrong batch": self.wrong_batches,
            "wrong neighbour": self.wrong_neighbours,
            "refused": self.refused,
            "duplicate unsafe effect": self.duplicate_unsafe_effects,
            "repeated finished step": self.repeated_finished_steps,
            "started while paused": self.started_while_paused,
            "unrecorded model call": self.unrecorded_model_calls,
            "broken invariant": self.broken_invariants,
            "never recovered": self.unrecovered,
        }
        found = [f"{what}: {one}" for what, ones in lists.items() for one in ones]
        if self.doubled:
            found.append(f"{self.doubled} jobs exist that nobody submitted")
        if self.must_know_every_outcome and self.outcome_unknown:
            found.append(f"{self.outcome_unknown} steps ended as outcome_unknown though nothing was killed")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the phase as a JSON object."""
        return asdict(self)


async def audit(
    name: str,
    client: Client,
    talks: Talks,
    batches: Batches,
    observer: Observer,
    ledger_path: Path,
    *,
    seconds: float,
    lease: float,
    jobs_before: int,
    freezes: int,
    neighbour: Neighbour | None = None,
    interruptions: Sequence[Interruption] = (),
    outages: Sequence[tuple[float, float]] = (),
    faults: Mapping[str, int] | None = None,
    must_know_every_outcome: bool = False,
) -> Phase:
    """Hold everything that happened to the client's jobs, messages and batches against what should have happened."""
    histories = await observer.histories(client.accepted)
    known = {job for job, history in histories.items() if history}
    neighbours = 0 if neighbour is None else neighbour.jobs
    submitted = len(client.accepted) + len(talks.sent) + batches.lines + neighbours
    return Phase(
        name=name,
        seconds=round(seconds, 1),
        jobs=len(client.accepted),
        steps=sum(len(ended.steps) for ended in client.ended.values()),
        jobs_by_kind=dict(sorted(Counter(recipe.kind for recipe in client.accepted.values()).items())),
        messages=len(talks.sent),
        batch_lines=batches.lines,
        neighbours=neighbours,
        wrong_batches=batches.defects,
        wrong_neighbours=[] if neighbour is None else neighbour.defects,
        job_seconds=Spread.of(client.seconds),
        wrong_talks=await talks.defects(observer),
        lost=sorted(set(client.accepted) - known),
        stuck=[f"{job} ({client.accepted[job].kind})" for job in client.unfinished if job in known],
        doubled=await observer.count_jobs() - jobs_before - submitted,
        refused=list(client.refused),
        broken_invariants=await _lasting_defects(observer, lease),
        outcome_unknown=sum(len(ended.unknown) for ended in client.ended.values()),
        freezes=freezes,
        client_trouble=dict(client.trouble),
        faults=faults or {},
        must_know_every_outcome=must_know_every_outcome,
        started_while_paused=started_while_paused(histories.values()),
        unrecorded_model_calls=[
            job
            for job, ended in client.ended.items()
            if ended.recipe.asks_model and unrecorded_calls(histories[job], ended.document["model_calls"])
        ],
        **_by_ledger(client, ledger_path, histories),
        **_by_time(interruptions, histories, outages),
    )


def _by_ledger(client: Client, path: Path, histories: Mapping[str, Sequence[Happened]]) -> dict[str, Any]:
    """Return what the ledger tells of the client's jobs."""
    entries = [entry for entry in ledger.read(path) if entry.key.split("/")[0] in client.accepted]
    begun, done = ledger.starts(entries), ledger.finishes(entries)
    repeated = ledger.repeated_after_success(entries, successes(histories.values()))
    return {
        "wrong": [
            f"{job} ({ended.recipe.kind}): {defect}"
            for job, ended in client.ended.items()
            for defect in defects(ended, begun, done)
        ],
        "held": sum(entry.phase == ledger.HOLD for entry in entries),
        "duplicate_unsafe_effects": ledger.duplicate_effects(entries),
        "repeated_finished_steps": sorted({*repeated, *started_after_success(histories.values())}),
    }


def _by_time(
    interruptions: Sequence[Interruption],
    histories: Mapping[str, Sequence[Happened]],
    outages: Sequence[tuple[float, float]],
) -> dict[str, Any]:
    """Return how long what was interrupted or given back lay still."""
    recovered, unrecovered = _recoveries(interruptions, histories, outages)
    found = gaps(histories.values())
    return {
        "interrupted": len(interruptions),
        "unrecovered": unrecovered,
        "recovery": Spread.of(seconds for _, seconds in recovered),
        "recovery_by_fault": {
            fault: Spread.of(seconds for kind, seconds in recovered if kind == fault)
            for fault in sorted({kind for kind, _ in recovered})
        },
        "given_back": len(found),
        "gap": Spread.of(found),
    }


def _recoveries(
    interruptions: Sequence[Interruption],
    histories: Mapping[str, Sequence[Happened]],
    outages: Sequence[tuple[float, float]],
) -> tuple[list[tuple[str, float]], list[str]]:
    """Return (fault, seconds) of what went on, and what did not; jobs of other phases are left out."""
    recovered, unrecovered = [], []
    for one in interruptions:
        if one.job not in histories:
            continue
        seconds = recovery_seconds(one, histories[one.job], outages)
        if seconds is None:
            unrecovered.append(f"{one.job}/{one.index} attempt {one.attempt} after {one.fault}")
        else:
            recovered.append((one.fault, seconds))
    return recovered, unrecovered


async def _lasting_defects(observer: Observer, lease: float) -> Sequence[str]:
    """Return the broken invariants that do not pass: what a killed worker left is swept within a lease."""
    until = time.monotonic() + lease + 5
    while True:
        broken = await observer.broken_invariants(lease)
        if not broken or time.monotonic() > until:
            return broken
        await asyncio.sleep(0.5)


def shown(phase: Phase) -> str:
    """Return the phase as text."""
    rows: list[tuple[str, Any]] = [
        ("jobs", f"{phase.jobs}  ({', '.join(f'{n} {kind}' for kind, n in phase.jobs_by_kind.items())})"),
        ("steps", phase.steps),
        ("messages", phase.messages),
        ("lines of batches", phase.batch_lines),
        ("jobs of the neighbour", phase.neighbours),
        ("lost", len(phase.lost)),
        ("stuck", len(phase.stuck)),
        ("doubled", phase.doubled),
        ("wrong answers", len(phase.wrong)),
        ("wrong conversations", len(phase.wrong_talks)),
        ("wrong batches", len(phase.wrong_batches)),
        ("wrong jobs of the neighbour", len(phase.wrong_neighbours)),
        ("refused or 5xx other than 503", len(phase.refused)),
        ("duplicate unsafe effects", len(phase.duplicate_unsafe_effects)),
        ("repeated finished steps", len(phase.repeated_finished_steps)),
        ("started while paused", len(phase.started_while_paused)),
        ("unrecorded model calls", len(phase.unrecorded_model_calls)),
        ("broken invariants", len(phase.broken_invariants)),
        ("outcome_unknown", phase.outcome_unknown),
        ("loops that a tool held", phase.held),
        ("loops that froze, so far", phase.freezes),
        ("attempts interrupted", f"{phase.interrupted}, never recovered {len(phase.unrecovered)}"),
        ("recovery", _spread(phase.recovery)),
        *((f"  {fault}", _spread(spread)) for fault, spread in phase.recovery_by_fault.items()),
        ("attempts given back", phase.given_back),
        ("gap of those", _spread(phase.gap)),
        ("a job took", _spread(phase.job_seconds)),
        ("the client met", ", ".join(f"{n} {what}" for what, n in sorted(phase.client_trouble.items())) or "nothing"),
        ("faults", f"{sum(phase.faults.values())}"),
        *((f"  {kind}", count) for kind, count in phase.faults.items()),
    ]
    lines = [f"{phase.name}: {phase.seconds:.0f} s"]
    lines += [f"  {name:<32} {value}" for name, value in rows]
    lines += [f"  ! {fault}" for fault in phase.faults_found[:_SHOWN]]
    return "\n".join(lines)


def _spread(spread: Spread) -> str:
    if spread.p50 is None:
        return "nothing to measure"
    return f"p50 {spread.p50:.2f} s, p95 {spread.p95:.2f} s, max {spread.maximum:.2f} s  ({spread.count})"

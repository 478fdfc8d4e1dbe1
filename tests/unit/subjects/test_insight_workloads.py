"""The report on three scripted workloads: one where insights help, one where they do nothing, one where they harm.

Rules, choice, holdout and report are the real ones; planner and tools are scripts, and lessons lie in a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from uuid import UUID

from planq.shared.subjects.insights.offering import (
    Candidate,
    InsightGroup,
    InsightMode,
    fitting,
    offered_text,
    side_of,
)
from planq.shared.subjects.insights.report import Block, Usefulness, compare
from planq.shared.subjects.insights.rules import EndedCall, EndedJob, InsightKind, learn

HOLDOUT = 0.1
_RANK = {InsightKind.CORRECTION: 0, InsightKind.FAILURE: 1, InsightKind.COURSE: 2}

Play = Callable[[str, Random], EndedJob]
"""What becomes of a job whose planner is shown a text."""


def ended(*calls: tuple[Mapping[str, Any], str | None], error: str | None = None) -> EndedJob:
    """A planned job that called `convert` so; with an error it has failed."""
    made = [EndedCall(n, n, "convert", arguments, code, 0.1) for n, (arguments, code) in enumerate(calls)]
    return EndedJob(UUID(int=0), "completed" if error is None else "failed", error, True, len(made), 1.0, made)


@dataclass
class Workload:
    """Jobs of one kind, one after the other, each learning from those before it."""

    play: Play
    known: dict[str, Candidate] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    blocks: dict[InsightGroup, list[Block]] = field(default_factory=lambda: {side: [] for side in InsightGroup})

    def run(self, jobs: int) -> Usefulness:
        """Let so many jobs plan and end; return what the report says of insights then."""
        chance = Random(34)
        for number in range(jobs):
            id = UUID(int=chance.getrandbits(128))
            found = sorted(self.known, key=lambda digest: self.ranks[digest])
            chosen = fitting([self.known[digest] for digest in found], lambda text: len(text) // 4)
            side = side_of(InsightMode.ON, id, HOLDOUT)
            job = self.play(offered_text(chosen) if side is InsightGroup.OFFERED else "", chance)
            if chosen:
                self.blocks[side].append(
                    Block(1, int(job.succeeded), job.failed_calls, job.rounds, job.seconds, 0.0, 100.0)
                )
            self._learn(job, number)
        return self.verdict

    @property
    def verdict(self) -> Usefulness:
        return compare(self.blocks[InsightGroup.OFFERED], self.blocks[InsightGroup.HELD_OUT])[0]

    def _learn(self, job: EndedJob, number: int) -> None:
        for lesson in learn(job).lessons:
            seen = self.known.get(lesson.digest, Candidate(UUID(int=number), lesson.text, 0))
            self.known[lesson.digest] = replace(seen, jobs=seen.jobs + 1)
            self.ranks[lesson.digest] = _RANK[lesson.kind]


TEXT, NUMBER = {"amount": "12,50"}, {"amount": 12.5}


def careful(shown: str, chance: Random) -> EndedJob:
    """A planner that sends amounts as texts unless it was told, and seldom has a second try."""
    if "it worked with amount: a number" in shown:
        return ended((NUMBER, None))
    if chance.random() < 0.25:
        return ended((TEXT, "tool_error"), (NUMBER, None))
    return ended((TEXT, "tool_error"), error="tool_error")


def deaf(shown: str, chance: Random) -> EndedJob:
    """A service that fails now and then, whatever a planner was told."""
    return ended((NUMBER, None)) if chance.random() < 0.7 else ended((NUMBER, "timeout"), error="timeout")


def misled(shown: str, chance: Random) -> EndedJob:
    """A service that failed for a while with a kind of argument that is the right one; warned planners avoid it."""
    if "failed (timeout)" in shown:
        return ended(({"amount": "twelve"}, "invalid_arguments"), error="invalid_arguments")
    return ended((NUMBER, None)) if chance.random() < 0.9 else ended((NUMBER, "timeout"), error="timeout")


def test_a_lesson_that_prevents_a_failure_is_found_within_200_jobs() -> None:
    workload = Workload(careful)
    assert workload.run(200) is Usefulness.HELPS
    assert len(workload.blocks[InsightGroup.HELD_OUT]) >= 10
    _, found = compare(workload.blocks[InsightGroup.OFFERED], workload.blocks[InsightGroup.HELD_OUT])
    assert found["success"].verdict is Usefulness.HELPS
    assert found["tool_failures"].verdict is Usefulness.HELPS


def test_of_lessons_that_do_nothing_the_report_says_so() -> None:
    assert Workload(deaf).run(600) is Usefulness.NO_DIFFERENCE


def test_lessons_that_harm_are_told_as_such() -> None:
    assert Workload(misled).run(300) is Usefulness.HARMS


def test_of_a_few_jobs_nothing_is_said() -> None:
    assert Workload(careful).run(20) is Usefulness.TOO_FEW

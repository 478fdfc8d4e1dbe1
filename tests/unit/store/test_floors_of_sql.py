"""SQL keeps the floors that import-linter keeps for Python: the kernel calls no subject."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from planq.shared.platform.sql_files import SHARED, is_query, sql_files
from tests.support.sql_tenancy import functions

SUBJECTS_IN_THE_KERNEL = {
    ("planq_serve_ends", "planq_settle_lines"): "the end of a job ends the line of its batch",
    ("planq_serve_ends", "planq_settle_turn"): "the end of a job ends its turn of a conversation",
    ("planq_stage_claims", "planq_deferral"): "a claim says which call of a provider's batch its stage waits for",
    ("planq_stage_claims", "planq_merged"): "a claim has the messages that its planning takes in",
    ("planq_submit_jobs", "planq_history_until_now"): "a job that is no turn is shown a conversation as it is now",
    ("planq_submit_jobs", "planq_history_of_child"): "a child job is shown what its parent is",
    ("planq_make_children", "planq_history_of_child"): "a child job is shown what its parent is",
}
"""What the kernel's functions call of subjects: each call by caller and callee, and why."""


def _bodies() -> Iterator[tuple[str, str, str]]:
    """Yield the room of each function, its name and its body without comments."""
    for file in sql_files():
        if not is_query(file):
            for name, body in functions(file.read_text("utf-8")).items():
                yield _room(file), name, re.sub(r"--[^\n]*", "", body)


def _room(file: Path) -> str:
    floor, subject, *_ = file.relative_to(SHARED).parts
    return floor if floor == "kernel" else subject


def test_the_kernel_calls_no_function_of_a_subject_but_these() -> None:
    bodies = list(_bodies())
    rooms = {name: room for room, name, _ in bodies}
    found = {
        (name, called)
        for room, name, body in bodies
        if room == "kernel"
        for called in re.findall(r"\b(planq_\w+)\(", body)
        if rooms.get(called, "kernel") != "kernel"
    }

    assert len(set(rooms.values())) > 10
    assert found - SUBJECTS_IN_THE_KERNEL.keys() == set()
    assert SUBJECTS_IN_THE_KERNEL.keys() - found == set(), "these need no exception any more"

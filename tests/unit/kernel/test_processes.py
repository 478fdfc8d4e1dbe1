"""When a worker's process counts as gone: only where everything that was seen says so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from planq.shared.kernel.processes import NoStatus, Process, ProcessStatus, has_gone, process_has_ended

WORKER = Process(boot="5f6a", pids=4026531836, times=4026531834, pid=700, started=9000, group=699)

LIVING = ProcessStatus(started=9000, is_running=True)
ZOMBIE = ProcessStatus(started=9000, is_running=False)
ANOTHER = ProcessStatus(started=9001, is_running=True)


def test_what_is_stored_is_read_again() -> None:
    assert WORKER.text == "5f6a 4026531836 4026531834 700 9000 699"
    assert Process.parse(WORKER.text) == WORKER


@pytest.mark.parametrize(
    "text", ["", "5f6a 1 2 700 9000", "5f6a 1 2 x 9000 699", "5f6a 1 2 0 9000 699", "a 1 2 3 4 -1"]
)
def test_what_names_no_process_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"values to unpack|invalid literal|the numbers of a process"):
        Process.parse(text)


@pytest.mark.parametrize("change", [{"boot": "5f6b"}, {"pids": 4026531837}, {"times": 4026531835}])
def test_another_boot_or_namespace_is_another_place(change: dict[str, object]) -> None:
    """Neither place begins as the other does, so that a store may look for the beginning of a text."""
    other = replace(WORKER, **change)
    assert not other.text.startswith(WORKER.place)
    assert not WORKER.text.startswith(other.place)


@pytest.mark.parametrize(
    ("seen", "ended"),
    [(NoStatus.ABSENT, True), (ZOMBIE, True), (ANOTHER, True), (LIVING, False), (NoStatus.HIDDEN, False)],
    ids=["absent", "zombie", "the number is another's", "living or stopped", "hidden"],
)
def test_a_process_has_ended_only_where_the_kernel_says_so(seen: ProcessStatus | NoStatus, ended: bool) -> None:
    assert process_has_ended(WORKER, seen) is ended


@pytest.mark.parametrize("seen", [NoStatus.ABSENT, ZOMBIE, ANOTHER, LIVING, NoStatus.HIDDEN])
@pytest.mark.parametrize(
    ("group", "may_act"),
    [
        (NoStatus.ABSENT, False),
        ([], False),
        ([ZOMBIE], False),
        ([ZOMBIE, ProcessStatus(9500, True)], True),
        (NoStatus.HIDDEN, True),
    ],
    ids=["nobody", "none is shown", "zombies", "a child lives", "hidden"],
)
def test_a_worker_has_gone_when_nobody_of_its_group_can_act(
    seen: ProcessStatus | NoStatus, group: Collection[ProcessStatus] | NoStatus, may_act: bool
) -> None:
    assert has_gone(WORKER, seen, group) is (process_has_ended(WORKER, seen) and not may_act)

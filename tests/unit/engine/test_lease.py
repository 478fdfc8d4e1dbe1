"""The fence by itself: a process that stands still past its lease in the middle of a write never goes on."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from planq.shared.kernel.ids import Attempt, StepRef
from planq.shared.platform.beats import boot_clock
from planq.shared.platform.errors import OwnershipLost
from planq.worker.engine.lease import FENCED_EXIT, Fence, Lease, Writes
from tests.support.tiers import rare

ATTEMPT = Attempt(StepRef(UUID(int=1), 0, 0), 1)
OTHER = Attempt(StepRef(UUID(int=2), 0, 0), 1)
PATIENCE = 60.0

PROCESS = """
import sys, time
from datetime import timedelta
from uuid import UUID
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.ids import Attempt
from planq.worker.engine.lease import Fence, Lease, Writes

acts, stops, renews = (word in sys.argv for word in ("acts", "stops", "renews"))
# Where it must live, a busy machine may keep it waiting for ten seconds.
length, margin = (30, 20) if stops or renews else (4, 3)
lease = Lease(timedelta(seconds=length), timedelta(seconds=margin))
fence = Fence(lease)
writes = Writes(lambda kind, _: fence.is_acting(kind == "acting"))
attempt = Attempt(StepRef(UUID(int=1), 0, 0), 1)
call = writes.calling(attempt)
if acts:
    call.__enter__()
fence.start(lambda: stops and writes.is_acting(attempt) and call.__exit__(None, None, None))
print("ready", flush=True)
until = time.monotonic() + length - margin + 4
while time.monotonic() < until:
    if renews:
        lease.renewed(lease.clock())
    time.sleep(0.05)
print("alive", flush=True)
"""


def process(*words: str) -> subprocess.Popen[str]:
    """A process that calls a write (`acts`), whose lease runs out a second from now, or ten where it is to live."""
    argv = [sys.executable, "-c", PROCESS, *words]
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["acts"], {FENCED_EXIT}),
        rare(["acts", "stops"], {0}),
        (["acts", "renews"], {0}),
        rare([], {0}),
    ],
)
def test_a_process_ends_where_a_write_of_it_does_not(words: list[str], code: set[int]) -> None:
    with process(*words) as ended:
        assert ended.stdout is not None
        alive = ended.stdout.read()
        assert ended.wait(PATIENCE) in code
    assert alive == ("alive\n" if code == {0} else "")


def test_the_guard_knows_the_end_of_the_lease_and_whether_writes_act() -> None:
    """The process must be gone after three quarters of the margin: a quarter is left before others may act."""
    told: list[tuple[float, bool]] = []
    lease = Lease(timedelta(seconds=10), timedelta(seconds=4), clock=lambda: 100.0)
    fence = Fence(lease, lambda at, acting: told.append((at, acting)))
    fence.is_acting(True)
    lease.renewed(105.0)
    fence.is_acting(False)
    assert told == [(109.0, True), (114.0, True), (114.0, False)]


def test_the_clock_counts_the_sleep_of_the_machine_where_the_system_can_tell() -> None:
    lease = Lease(timedelta(seconds=10), timedelta(seconds=2))
    assert 7.9 < lease.ends_at - boot_clock() <= 8
    assert lease.is_fresh


def test_a_lease_is_over_at_the_moment_that_it_ends() -> None:
    now = [100.0]
    lease = Lease(timedelta(seconds=10), timedelta(seconds=2), clock=lambda: now[0])
    now[0] = 107.9
    assert lease.is_fresh
    now[0] = lease.ends_at
    assert (now[0], lease.is_fresh) == (108.0, False)


def test_writes_act_until_the_last_thread_of_them_has_ended() -> None:
    told: list[str] = []
    writes = Writes(lambda kind, _: told.append(kind))
    with writes.calling(ATTEMPT):
        thread = writes.in_thread(ATTEMPT)
        thread.__enter__()
    assert writes.is_acting(ATTEMPT)
    with writes.calling(OTHER):
        pass
    assert (told, writes.acting) == (["acting"], [ATTEMPT])
    thread.__exit__(None, None, None)
    assert (told, writes.acting) == (["acting", "still"], [])


def test_a_thread_that_comes_too_late_does_not_begin() -> None:
    writes = Writes()
    with writes.calling(ATTEMPT):
        pass
    with pytest.raises(OwnershipLost, match="before it had begun"), writes.in_thread(ATTEMPT):
        pytest.fail("it began")

"""B14: a job of ten turns, in each of which the model calls one tool, against LangGraph's own agent.

The models take no time: planq's is `offline`, LangGraph's a script. Both agents store every turn before the next one
begins; planq's job comes over HTTP and runs in a worker. What one job commits and sends is counted as in B11.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

from tests.bench import footprint, hot_path
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.peers import environment, subjects
from tests.bench.submitting import Planq

TURNS = 10
MAX_TURNS = 16
"""More than are made: a limit would make the last turn another one."""

IDLE_SECONDS, QUICK_IDLE_SECONDS = 10, 5
COMMITS, MESSAGES = 2.0 * TURNS + 3, 1.0
"""Submit, claim, for each turn one for its plan and one for its step, which takes the next turn over, and the end."""

STRAY = 0.5
"""An idle planq does not commit the same in every second, so that a job's own commits are not known exactly."""

PEER = "LangGraph"


def workload(context: Context) -> hot_path.Workload:
    """Return what both are to do."""
    return hot_path.Workload(
        "B14",
        f"B14 a react job of {TURNS} single-tool turns",
        "ms",
        TURNS,
        context.either(20, 5),
        lambda seconds, _: seconds * hot_path.MS,
        (Bound(1.0, PEER),),
        (Bound(0.5, PEER),),
        limits=(),
    )


def measure(context: Context) -> Iterator[Figure]:
    """Run both in turns, then count what planq's jobs commit and send."""
    context.about |= environment.versions()
    database_url, wanted = context.create_migrated(), workload(context)
    footprint.stop_autovacuum(database_url)
    env = {"DATABASE_URL": database_url, "PLANQ_MAX_TOOL_STEPS": str(MAX_TURNS)}
    with subjects.running(context, PEER) as peers, context.planq(env=env) as stack:
        planq = Planq(stack.url)
        yield hot_path.compared(context, wanted, {hot_path.PLANQ: planq, **peers}, {})
        jobs = context.either(50, 20)
        pause = context.either(IDLE_SECONDS, QUICK_IDLE_SECONDS)
        idle = footprint.moved(context, lambda: Event().wait(pause))
        busy = footprint.moved(context, lambda: planq.run(wanted.name, size=TURNS, times=jobs))
    yield from figures(busy.per_job(idle, jobs))


def figures(job: footprint.TransitionResult) -> list[Figure]:
    """Return the rows of what one job moves."""
    note = f"B14: {TURNS} turns of one call and the answer; counted as in B11."
    commits, messages = round(job.commits, 1), round(job.messages, 1)
    return [
        Figure("B14 commits of one job", commits, "", bounds=[Bound(COMMITS + STRAY)], note=note),
        Figure("B14 broker messages of one job", messages, "", bounds=[Bound(MESSAGES + STRAY)], note=note),
        Figure("B14 bytes of log of one job", job.log_bytes / footprint.KB, "kB", note=note),
    ]

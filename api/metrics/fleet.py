"""What `/metrics` shows of the whole installation, from what the database counts and workers say.

A number that only grows has one series for all: that a worker ends, or that another process reports, makes none fall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from planq.shared.agentic.tools.definition import LATENCIES_SECONDS
from planq.shared.kernel.states import Outcome
from planq.shared.platform.database import Row
from planq.shared.subjects.insights.offering import InsightGroup

Counted = Mapping[tuple[str, ...], Decimal]
"""Numbers that only grow, by name and labels."""

TIMES_SECONDS = ("0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "30", "60", "300", "1800", "7200")
"""Upper bounds of the times that are told apart, as `planq_bucket` has them."""

_TOOL_SECONDS = tuple(map(str, LATENCIES_SECONDS))
_OUTCOMES = tuple(map(str, Outcome))


class CountedName(NamedTuple):
    """How a count is shown: its metric and meaning, its labels, and which values of its only label always show."""

    metric: str
    meaning: str
    labels: tuple[str, ...] = ()
    always: tuple[str, ...] = ()


COUNTERS: Mapping[str, CountedName] = {
    "jobs_created": CountedName("planq_jobs_created", "Jobs that were submitted, child jobs, too.", ("priority",)),
    "tasks_created": CountedName("planq_tasks_created", "Tasks: jobs that `GET /tasks` lists, turns among them."),
    "tasks_ended": CountedName("planq_tasks_ended", "Tasks that have ended, by outcome.", ("outcome",), _OUTCOMES),
    "turns_ended": CountedName(
        "planq_turns_ended", "Turns of conversations that have ended.", ("outcome",), _OUTCOMES
    ),
    "plans_created": CountedName(
        "planq_plans_created",
        "Plans of one round each that were accepted, or refused with their defects.",
        ("outcome",),
        ("accepted", "refused"),
    ),
    "insights_chosen": CountedName(
        "planq_insights_chosen",
        "Jobs that have ended for which insights were chosen: offered to the planner, held out, or in shadow.",
        ("side",),
        tuple(map(str, InsightGroup)),
    ),
    "steps_ended": CountedName(
        "planq_steps_ended",
        "Steps of jobs that have ended, by what they came to; without those that a fork took over.",
        ("kind", "pool", "outcome"),
    ),
    "outbound_messages": CountedName("planq_outbound_messages", "Replies and questions written into conversations."),
    "llm_calls": CountedName(
        "planq_llm_calls",
        "Calls of models, by stage and result. A model that has never answered is `other`.",
        ("model", "purpose", "outcome"),
    ),
    "llm_tokens": CountedName("planq_llm_tokens", "Tokens of calls of models.", ("model", "direction")),
    "llm_cache_tokens": CountedName(
        "planq_llm_cache_tokens",
        "Input tokens that providers read from their prompt caches, or stored in them.",
        ("model", "access"),
    ),
    "llm_cost": CountedName("planq_llm_cost_usd", "What calls of models cost, where it is known.", ("model",)),
    "tool_cost": CountedName(
        "planq_tool_cost_usd",
        "What calls of tools cost that have a price, counted with the end of their job.",
        ("tool",),
    ),
    "transition": CountedName(
        "planq_orchestration_transitions",
        "Transitions of orchestrations of agents, by event and the state it led to.",
        ("event", "state"),
    ),
    "depth_refused": CountedName(
        "planq_agent_depth_refusals", "Calls of agents refused because they would be nested too deeply.", ("tool",)
    ),
    "lost": CountedName(
        "planq_lost_attempts",
        "Attempts found lost with the worker that carried them out, by how that was seen.",
        ("seen",),
        ("gone", "lease", "abandoned"),
    ),
    "late": CountedName("planq_late_outcomes", "Outcomes rejected because their attempt had ended otherwise."),
    "dead_letter": CountedName(
        "planq_dead_letters", "Messages that were no wake-ups, moved to the list of dead letters."
    ),
    "control_refused": CountedName(
        "planq_refused_commands",
        "Messages for remote control that were refused: commands that are not allowed, and what is no command.",
    ),
    "planner_fallback": CountedName(
        "planq_planner_fallbacks",
        "Rounds whose planner failed or could not be read, and that went on in another form, or without a guide.",
        ("to",),
    ),
    "delivery": CountedName(
        "planq_delivery_attempts",
        "Attempts to deliver webhooks and messages, by result: sent, again, failed for good, or uncertain.",
        ("result",),
        ("sent", "again", "failed", "uncertain"),
    ),
    "tool_call": CountedName(
        "planq_tool_calls",
        "Calls of tools, by their result: succeeded, delegated, suspended, asked, or the code of the error.",
        ("tool", "outcome"),
    ),
}
"""What is counted, by the name under which the database or a worker counts it."""

HISTOGRAMS: Mapping[str, CountedName] = {
    "queue": CountedName("planq_job_queue_seconds", "From a job's submission until a worker has it.", ("priority",)),
    "planning": CountedName("planq_planning_seconds", "From the claim of the stage PLAN to its plan or answer."),
    "plan_execution": CountedName(
        "planq_plan_execution_duration_seconds",
        "From a plan's acceptance until its steps have ended.",
    ),
    "step": CountedName("planq_step_seconds", "From a step's first start to its end.", ("pool",)),
    "answer": CountedName("planq_answer_seconds", "From the claim of the stage RESPOND to the answer."),
    "job": CountedName("planq_job_seconds", "From a job's submission to its end.", ("priority",)),
    "llm": CountedName("planq_llm_call_seconds", "How long calls of models took, all attempts.", ("model",)),
}
"""Times, by the name under which the database counts them."""


class FleetCollector(Collector):
    """The families of all these; none where this process does not report, or the database does not answer."""

    def __init__(self) -> None:
        self._counted: Counted | None = None
        self._ended: Mapping[str, int] = {}
        self._workers: Sequence[Row] = ()

    def show(self, counted: Counted, ended: Mapping[str, int], workers: Sequence[Row]) -> None:
        """Show what was counted, how many jobs have ended by outcome, and how the live workers fare."""
        self._counted, self._ended, self._workers = counted, ended, workers

    def hide(self) -> None:
        self._counted = None

    def collect(self) -> Iterable[Metric]:
        if self._counted is None:
            return
        ended = CounterMetricFamily("planq_jobs_ended", "Jobs that have ended, by outcome.", labels=("outcome",))
        for outcome, number in self._ended.items():
            ended.add_metric((outcome,), number)
        yield ended
        yield from _counters(self._counted)
        for name, shown in HISTOGRAMS.items():
            yield _histogram(self._counted, f"{name}_seconds", f"{name}_seconds_sum", shown, TIMES_SECONDS)
        tools = CountedName("planq_tool_call_seconds", "How long tools took to answer.", ("tool",))
        yield _histogram(self._counted, "tool_seconds", "tool_ms", tools, _TOOL_SECONDS, unit=1000)
        yield from _each(self._workers)


def _counters(counted: Counted) -> Iterable[Metric]:
    families = {
        name: CounterMetricFamily(one.metric, one.meaning, labels=one.labels) for name, one in COUNTERS.items()
    }
    series: dict[tuple[str, ...], Decimal] = {(name,): Decimal() for name, one in COUNTERS.items() if not one.labels}
    series |= {(name, value): Decimal() for name, one in COUNTERS.items() for value in one.always}
    for key, number in {**series, **counted}.items():
        name, *labels = key
        if name in families and len(labels) == len(COUNTERS[name].labels):
            families[name].add_metric(labels, float(number))
    return families.values()


def _histogram(
    counted: Counted,
    name: str,
    sum_name: str,
    shown: CountedName,
    bounds: Sequence[str],
    *,
    unit: int = 1,
) -> Metric:
    """Return a histogram, its buckets cumulative; `unit` of what was summed up make a second."""
    family = HistogramMetricFamily(shown.metric, shown.meaning, labels=shown.labels)
    found: dict[tuple[str, ...], dict[str, Decimal]] = {} if shown.labels else {(): {}}
    for key, number in counted.items():
        if key[0] == name and len(key) == len(shown.labels) + 2:
            found.setdefault(key[1:-1], {})[key[-1]] = number
    for labels, buckets in found.items():
        every = [*bounds, "+Inf"]
        below = accumulate(float(buckets.get(bound, 0)) for bound in every)
        total = float(counted.get((sum_name, *labels), 0)) / unit
        family.add_metric(labels, list(zip(every, below, strict=True)), total)
    return family


def _each(workers: Sequence[Row]) -> Iterable[Metric]:
    """Yield how each live worker fares now; its series end with it."""
    labels = ("worker", "pool")
    lag = GaugeMetricFamily(
        "planq_worker_loop_lag_seconds", "Longest delay of the worker's loop since its beat before.", labels=labels
    )
    in_flight = GaugeMetricFamily("planq_worker_in_flight", "Attempts under way in the worker.", labels=labels)
    for row in workers:
        own = (row["name"], ",".join(row["pools"]))
        lag.add_metric(own, row["lag_ms"] / 1000)
        in_flight.add_metric(own, row["in_flight"])
    return (lag, in_flight)

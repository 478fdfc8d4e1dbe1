"""The jobs of the run: what is submitted, and the right answer of every step, computed here and not by planq.

Which jobs come in which order is a pure function of the seed. What takes time is spread so that a fault finds every
kind of attempt running.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.chaos.blob import blob, shrunk
from tests.chaos.schedule import dealt

FAN_OUT = 20
HOLDS = 20
"""Steps that a job of the kind `hold` keeps running at a time: what the faults interrupt, above all."""

ZEROS, ZERO_JOINS = 70, 10
"""Steps that do nothing, more at a time than a window of 64 lets out, and how many wait for all of them."""

UNSAFE = {"chaos_effect", "chaos_book", "chaos_book_late", "chaos_book_thread", "chaos_book_cpu", "chaos_charge"}

BLOB_SIZE = 1_000_000
BLOBS = 8
"""So few that most large outputs are stored already when a job comes to them, rightly or not."""

_DEADLY_SHARE = 0.1
CANCELLED_HOLD_SECONDS = 25.0
"""Far longer than any cancel takes to arrive, far shorter than the patience with jobs that do not end."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A job request and what has to come of it.

    `outputs` are the right outputs of the steps in order, long ones `shrunk`; `unsafe` the indices of those that may
    end as `outcome_unknown`. `told` must occur in the answer of a job whose steps all succeeded. `action` (`cancel`,
    `pause`) is what the client does `after` so many seconds; `quiet` is how long a paused job stays paused.
    A job that is planned by rounds ends with a `stop_reason`.
    """

    number: int
    kind: str
    body: dict[str, Any]
    outputs: tuple[Any, ...]
    unsafe: frozenset[int] = frozenset()
    told: tuple[str, ...] = ()
    action: str | None = None
    after: float = 0.0
    quiet: float = 0.0
    stop_reason: str | None = None

    @property
    def asks_model(self) -> bool:
        """True when a model makes its plans."""
        return "plan" not in self.body


@dataclass(frozen=True, slots=True)
class _Steps:
    """A plan's calls with their right outputs."""

    calls: tuple[dict[str, Any], ...] = ()
    outputs: tuple[Any, ...] = ()
    unsafe: frozenset[int] = frozenset()

    def then(self, tool: str, output: Any, retries: int | None = None, **arguments: Any) -> _Steps:
        """Return these steps and one more."""
        call: dict[str, Any] = {"tool_name": tool, "arguments": arguments}
        if retries is not None:
            call["retries"] = retries
        marked = {len(self.calls)} if tool in UNSAFE else set()
        return _Steps((*self.calls, call), (*self.outputs, output), self.unsafe | marked)

    def after(self, *depends_on: int) -> _Steps:
        """Return these steps with an explicit order for the last one."""
        last = {**self.calls[-1], "depends_on": list(depends_on)}
        return _Steps((*self.calls[:-1], last), self.outputs, self.unsafe)

    def recipe(self, number: int, kind: str, **more: Any) -> Recipe:
        """Return the job that runs these steps."""
        plan = {"calls": list(self.calls), "on_failure": "answer"}
        respond = "model" if number % 2 or more.get("told") else "output"
        return Recipe(number, kind, {"plan": plan, "respond": respond}, self.outputs, self.unsafe, **more)

    def in_words(self, number: int, kind: str, strategy: str) -> Recipe:
        """Return the job whose planner makes these calls; in `react` each in the turn after those that it needs."""
        told = (f"call {call['tool_name']} with {json.dumps(call['arguments'])}" for call in self.calls)
        body = {"input": ", then ".join(told), "strategy": strategy, "model": "offline"}
        return Recipe(number, kind, body, self.outputs, self.unsafe, stop_reason="answered")


def _value(value: int) -> dict[str, int]:
    return {"value": value}


def _seconds(random: Random, low: float, high: float) -> float:
    return round(random.uniform(low, high), 2)


def _chain(number: int, random: Random) -> Recipe:
    value = random.randrange(1000)
    steps = _Steps().then("chaos_hold", _value(value), seconds=_seconds(random, 0, 1), value=value)
    for index in range(5):
        value += index
        steps = steps.then("chaos_add", _value(value), a=f"${index}.output.value", b=index)
    return steps.recipe(number, "chain")


def _fan(number: int, random: Random) -> Recipe:
    numbers = [random.randrange(100) for _ in range(FAN_OUT)]
    steps = _Steps()
    for n in numbers:
        steps = steps.then("chaos_square", _value(n * n), n=n, seconds=_seconds(random, 0, 1.5))
    found = [f"${index}.output.value" for index in range(FAN_OUT)]
    total = sum(n * n for n in numbers)
    steps = steps.then("chaos_total", _value(total), values=found)
    return steps.then("chaos_add", _value(total + 1), a=f"${FAN_OUT}.output.value", b=1).recipe(number, "fan")


def _timer(number: int, random: Random) -> Recipe:
    value = random.randrange(1000)
    seconds = _seconds(random, 0.5, 5)
    steps = _Steps().then("chaos_add", _value(value + 1), a=value, b=1)
    steps = steps.then("wait", {"waited_seconds": seconds}, seconds=seconds).after(0)
    steps = steps.then("chaos_add", _value(value + 2), a="$0.output.value", b=1).after(1)
    return steps.recipe(number, "timer")


def _zeros(number: int, random: Random) -> Recipe:
    """What is left is planq's own work: a window, its follow-ups, and an end that many wait for."""
    steps = _Steps()
    for index in range(ZEROS + ZERO_JOINS):
        needed = range(ZEROS) if index >= ZEROS else ()
        steps = steps.then("wait", {"waited_seconds": 0}, seconds=0).after(*needed)
    value = random.randrange(1000)
    return (
        steps.then("chaos_add", _value(value + 1), a=value, b=1)
        .after(*range(ZEROS, index + 1))
        .recipe(number, "zeros")
    )


def _retry(number: int, random: Random) -> Recipe:
    value = random.randrange(1000)
    failures = random.randint(1, 3)
    steps = _Steps().then("chaos_flaky", _value(value), retries=3, value=value, failures=failures)
    return steps.then("chaos_add", _value(value * 2), a="$0.output.value", b=value).recipe(number, "retry")


def _unsafe(number: int, random: Random) -> Recipe:
    value = random.randrange(1000)
    steps = _Steps()
    for _ in range(3):
        steps = steps.then("chaos_effect", _value(value), value=value, seconds=_seconds(random, 0, 1))
    return steps.then("chaos_add", _value(value * 2), a="$2.output.value", b=value).recipe(number, "unsafe")


def _found(number: int, random: Random) -> Recipe:
    value = random.randrange(1000)
    steps = _Steps()
    for tool in ("chaos_book", "chaos_book_late", "chaos_book_thread", "chaos_book_cpu"):
        steps = steps.then(tool, _value(value), value=value, seconds=_seconds(random, 0, 1.5))
    return steps.then("chaos_add", _value(value * 2), a="$3.output.value", b=value).recipe(number, "found")


def _asked(number: int, random: Random) -> Recipe:
    value = random.randrange(1000)
    steps = _Steps()
    for _ in range(3):
        steps = steps.then("chaos_charge", _value(value), value=value, seconds=_seconds(random, 0, 1.5))
    return steps.then("chaos_add", _value(value * 2), a="$2.output.value", b=value).recipe(number, "asked")


def _write(number: int, random: Random) -> Recipe:
    value = random.randrange(1000)
    steps = _Steps().then("chaos_put", _value(value), value=value, seconds=_seconds(random, 0, 2))
    steps = steps.then("chaos_effect", _value(value), value="$0.output.value", seconds=0)
    return steps.then("chaos_put", _value(value), value="$1.output.value", seconds=0).recipe(number, "write")


def _hold(number: int, random: Random) -> Recipe:
    values = [random.randrange(1000) for _ in range(HOLDS)]
    steps = _Steps()
    for value in values:
        steps = steps.then("chaos_hold", _value(value), seconds=_seconds(random, 1, 5), value=value)
    found = [f"${index}.output.value" for index in range(HOLDS)]
    return steps.then("chaos_total", _value(sum(values)), values=found).recipe(number, "hold")


def _cpu(number: int, random: Random) -> Recipe:
    sizes = [random.randrange(1000, 20_000) for _ in range(3)]
    totals = [sum(i * i for i in range(n)) for n in sizes]
    steps = _Steps()
    for n, total in zip(sizes, totals, strict=True):
        steps = steps.then("chaos_crunch", _value(total), n=n, seconds=_seconds(random, 0.3, 1.5))
    found = [f"${index}.output.value" for index in range(len(sizes))]
    return steps.then("chaos_total", _value(sum(totals)), values=found).recipe(number, "cpu")


def _planned(number: int, random: Random) -> Recipe:
    a, b, c = (random.randrange(2, 100) for _ in range(3))
    body = {"input": f"calculate {a} * {b}, then calculate it + {c}", "model": "offline"}
    told = (f"{a} * {b} = {a * b}", f"({a * b}) + {c} = {a * b + c}")
    return Recipe(number, "planned", body, ({"result": a * b}, {"result": a * b + c}), told=told)


def _turns(random: Random, tool: str) -> _Steps:
    """Return a step, two that need it, and one that needs both: three turns of `react`, one round of `loop`."""
    value = random.randrange(1000)
    steps = _Steps().then("chaos_hold", _value(value), seconds=_seconds(random, 0, 1), value=value)
    steps = steps.then(tool, _value(value), value="$0.output.value", seconds=_seconds(random, 0, 1))
    steps = steps.then("chaos_put", _value(value), value="$0.output.value", seconds=_seconds(random, 0, 1))
    return steps.then("chaos_add", _value(2 * value), a="$1.output.value", b="$2.output.value")


def _react(number: int, random: Random) -> Recipe:
    return _turns(random, "chaos_effect").in_words(number, "react", "react")


def _react_asked(number: int, random: Random) -> Recipe:
    return _turns(random, "chaos_charge").in_words(number, "react_asked", "react")


def _approved(number: int, random: Random) -> Recipe:
    recipe = _turns(random, "chaos_effect").in_words(number, "approved", "react")
    return replace(recipe, body={**recipe.body, "loop": {"policy": {"chaos_effect": "ask"}}})


def _loop(number: int, random: Random) -> Recipe:
    return _turns(random, "chaos_effect").in_words(number, "loop", "loop")


def _loop_asked(number: int, random: Random) -> Recipe:
    return _turns(random, "chaos_charge").in_words(number, "loop_asked", "loop")


def _large(number: int, random: Random) -> Recipe:
    seed = random.randrange(BLOBS)
    text = blob(seed, BLOB_SIZE)
    steps = _Steps().then("chaos_blob", shrunk({"text": text}), seed=seed, size=BLOB_SIZE)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return steps.then("chaos_digest", {"text": digest}, text="$0.output.text").recipe(number, "large")


def _cancelled(number: int, random: Random) -> Recipe:
    value = random.randrange(1000)
    steps = _Steps().then("chaos_add", _value(value), a=value, b=0)
    steps = steps.then("chaos_hold", _value(value), seconds=CANCELLED_HOLD_SECONDS, value="$0.output.value")
    steps = steps.then("chaos_effect", _value(value), value="$1.output.value", seconds=0)
    return steps.recipe(number, "cancelled", action="cancel", after=_seconds(random, 0, 2))


def _paused(number: int, random: Random) -> Recipe:
    value = random.randrange(1000)
    steps = _Steps()
    for index in range(3):
        steps = steps.then("chaos_put", _value(value + index), value=value + index, seconds=_seconds(random, 0.2, 1))
    quiet = _seconds(random, 1, 4)
    return steps.recipe(number, "paused", action="pause", after=_seconds(random, 0, 1), quiet=quiet)


def _kill(number: int, random: Random) -> Recipe:
    """One in ten kills its process: otherwise hardly any worker would live until a fault is dealt to it."""
    value = random.randrange(1000)
    times = random.randint(1, 3) if random.random() < _DEADLY_SHARE else 0
    steps = _Steps().then("chaos_kill", _value(value), value=value, times=times)
    return steps.then("chaos_add", _value(value + 1), a="$0.output.value", b=1).recipe(number, "kill")


def _freeze(number: int, random: Random) -> Recipe:
    """The first of a run and one in ten freeze their process, once."""
    value = random.randrange(1000)
    hold = random.random() < _DEADLY_SHARE or number < len(KINDS)
    steps = _Steps().then("chaos_freeze", _value(value), value=value, hold=hold)
    return steps.then("chaos_add", _value(value + 1), a="$0.output.value", b=1).recipe(number, "freeze")


KINDS: dict[str, Callable[[int, Random], Recipe]] = {
    "chain": _chain,
    "fan": _fan,
    "timer": _timer,
    "zeros": _zeros,
    "retry": _retry,
    "unsafe": _unsafe,
    "found": _found,
    "asked": _asked,
    "write": _write,
    "hold": _hold,
    "cpu": _cpu,
    "planned": _planned,
    "react": _react,
    "react_asked": _react_asked,
    "approved": _approved,
    "loop": _loop,
    "loop_asked": _loop_asked,
    "large": _large,
    "cancelled": _cancelled,
    "paused": _paused,
    "kill": _kill,
    "freeze": _freeze,
}

ASKING = frozenset({"asked", "react_asked", "loop_asked", "approved"})
"""Kinds whose steps ask a person: what became of a call that was cut off, or whether it may be made."""

PEACEFUL = tuple(kind for kind in KINDS if kind not in ("kill", "freeze"))


def recipes(seed: int, first: int = 0, kinds: Sequence[str] = tuple(KINDS)) -> Iterator[Recipe]:
    """Yield jobs for ever, numbered from `first`; every kind once before any comes again."""
    random = Random(f"planq-chaos-jobs-{seed}-{first}")
    for offset, kind in enumerate(dealt(random, list(kinds))):
        yield KINDS[kind](first + offset, random)

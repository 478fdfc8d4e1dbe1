"""The guard against running in circles: which of a model's calls are repetitions (docs/decisions.md, D17, D29).

Its history are the calls that models made in the job's earlier rounds, blocked ones included, and the calls of the
present plan, in list order. A call is blocked where

- the calls right before it are the same, and with it they would be `consecutive_limit`;
- it occurs `window_freq_limit` times among the last `window_size` calls;
- with it, the last `window_size` calls would alternate between exactly two.

Calls are the same by tool and arguments, as JSON: the order of keys plays no part, that of items does. Calls of
repeatable tools and of plans that no model made concern it neither way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.values.describe import excerpt

DUPLICATE_CALL_BLOCKED: Final = "duplicate_call_blocked"
"""Code of a step that the guard blocked."""

DUPLICATE_OF: Final = "duplicate_of"
"""Code of a step that repeats an earlier one of its own plan; its details name that one: `{"step": N}`."""

SKIPPED: Final = "skipped"
"""Code of a step that was never called, because it needs the output of one that has none."""

MODEL_SOURCE: Final = "model"
CALLER_SOURCE: Final = "caller"
"""What `RoundRecord.source` says of a plan that a model made."""

_LEAST = {"consecutive_limit": 2, "window_size": 4, "window_freq_limit": 1}
_MOST = 1_000


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """When a call counts as a repetition; see the module. Made from what somebody wrote by `of`."""

    consecutive_limit: int = 3
    window_size: int = 8
    window_freq_limit: int = 4

    @classmethod
    def of(cls, wanted: Mapping[str, Any], *, within: GuardLimits | None = None) -> Self:
        """Return the limits that `wanted` names, the others from `within` (the defaults).

        Raises `InvalidRequest` for an unknown name and for what is no whole number from the least that makes sense
        (2 calls in a row, a window of 4, 1 occurrence) to 1000.
        """
        known = [field.name for field in fields(cls)]
        base = GuardLimits() if within is None else within
        found = {name: getattr(base, name) for name in known}
        for name, value in wanted.items():
            if name not in known:
                raise InvalidRequest(f"guard: unknown limit {excerpt(name)}; known limits are {', '.join(known)}")
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not _LEAST[name] <= value <= _MOST or value != int(value):
                raise InvalidRequest(
                    f"guard: {name}: expected a whole number from {_LEAST[name]} to {_MOST}, found {excerpt(value)}"
                )
            found[name] = int(value)
        return cls(**found)


@dataclass(frozen=True, slots=True)
class PastCall:
    """A call of an earlier round; `key` is its `call_key`, `step` its index in the job."""

    key: str
    step: int
    has_succeeded: bool


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """What the guard says of a proposed call with this `call_key`; `output_of` is the step with the last successful
    output of the same call, None where there is none."""

    key: str
    is_blocked: bool
    output_of: int | None


def call_key(tool_name: str, arguments: Any) -> str:
    """Return a text that two calls have in common exactly when they are the same."""
    return f"{tool_name}({canonical_arguments(arguments)})"


def canonical_arguments(arguments: Any) -> str:
    """Return arguments as JSON with sorted keys and without blanks; `""` for null, `{}` and `""` alike.

    Numbers count by value: 3.0 is 3. Precondition: not nested deeper than a plan may be.
    """
    if arguments in (None, "") or arguments == {}:
        return ""
    return json.dumps(_by_value(arguments), sort_keys=True, separators=(",", ":"), default=str)


def past_calls(rounds: Sequence[RoundRecord], tools: Mapping[str, ToolDefinition]) -> list[PastCall]:
    """Return the guard's history: the calls that models made and that are no calls of a repeatable tool.

    What was skipped and what repeats a call of its own plan was never called, and does not count.
    """
    return [
        call
        for record in rounds
        if record.source == MODEL_SOURCE
        for name, call in record.memo.get("calls") or _calls(record)
        if (tool := tools.get(name)) is None or not tool.repeatable
    ]


def _calls(record: RoundRecord) -> Sequence[tuple[str, PastCall]]:
    """Return the calls of a round, each with the name of its tool."""
    found = record.memo["calls"] = [
        (one.tool_name, PastCall(call_key(one.tool_name, one.arguments), one.index, one.succeeded))
        for one in called(record)
    ]
    return found


def judged(
    proposed: Sequence[tuple[str, Any]], history: Sequence[PastCall], limits: GuardLimits
) -> list[GuardVerdict]:
    """Return for each call (registered name of the tool, arguments) of a plan, in list order, what becomes of it.

    Arguments whose references are not resolved are compared as they stand. Precondition: none of the tools is
    repeatable, and no call repeats another of this very plan unless its author may want that.
    """
    last_output = {call.key: call.step for call in history if call.has_succeeded}
    keys = [call.key for call in history[-limits.window_size :]]
    keys = keys if limits.consecutive_limit <= limits.window_size else [call.key for call in history]
    verdicts: list[GuardVerdict] = []
    for tool_name, arguments in proposed:
        key = call_key(tool_name, arguments)
        verdicts.append(GuardVerdict(key, _is_repetition(key, keys, limits), last_output.get(key)))
        keys.append(key)
    return verdicts


def is_stalled(rounds: Sequence[RoundRecord]) -> bool:
    """True when every call of the last two rounds was blocked as a repetition, and each of them had one.

    A question, and a call that ran or failed by itself, is movement.
    """
    return len(rounds) >= 2 and all(map(_is_circle, rounds[-2:]))


def called(record: RoundRecord) -> Iterator[StepResult]:
    """Yield the results of the calls of tools that were made, or refused, in a round; blocked ones are among them."""
    for result, kind in zip(record.results, _kinds(record), strict=False):
        if kind is None and result.code not in (SKIPPED, DUPLICATE_OF):
            yield result


def is_repeatable(tool: ToolDefinition | None) -> bool:
    """True when the guard lets every call of the tool pass; a tool that is not known is not repeatable."""
    return tool is not None and tool.repeatable


def _is_circle(record: RoundRecord) -> bool:
    if record.source != MODEL_SOURCE or any(kind not in (None, "noop") for kind in _kinds(record)):
        return False
    codes = [result.code for result in called(record)]
    return bool(codes) and all(code == DUPLICATE_CALL_BLOCKED for code in codes)


def _kinds(record: RoundRecord) -> list[str | None]:
    """Return for each step of a round its kind where it is no call of a tool; None for a call."""
    body = record.plan if isinstance(record.plan, Mapping) else {}
    calls = body.get("calls")
    kinds = [call.get("kind") if isinstance(call, Mapping) else None for call in calls or ()]
    return kinds + [None] * (len(record.results) - len(kinds))


def _is_repetition(key: str, before: Sequence[str], limits: GuardLimits) -> bool:
    in_a_row = before[-(limits.consecutive_limit - 1) :]
    if len(in_a_row) == limits.consecutive_limit - 1 and set(in_a_row) == {key}:
        return True
    window = before[-limits.window_size :]
    if window.count(key) >= limits.window_freq_limit:
        return True
    last = [*window[-(limits.window_size - 1) :], key]
    return len(last) == limits.window_size and len(set(last)) == 2 and len({*last[::2]}) == len({*last[1::2]}) == 1


def _by_value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _by_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_by_value(item) for item in value]
    return value

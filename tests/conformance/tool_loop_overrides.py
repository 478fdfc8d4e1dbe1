"""Where docs/decisions.md overrides a `real` case of the tool loop (`inbound_flow`, operation `tool_loop`).

The calls of these cases have no arguments, so that two calls of one tool are the same call. Everything is worked out
from a case's input, so that cases nobody here has seen are judged the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.conformance.cases import Case
from tests.conformance.rule import Expected, Rule


@dataclass(frozen=True)
class Made:
    """A call; `verdict`: `run`, `blocked`, `repeated` (D17), `unknown` (D4), `beyond` the calls of a turn (D31)."""

    turn: int
    tool: str
    verdict: str


@dataclass(frozen=True)
class Played:
    """What planq does with a case: its calls, the number of turns that made them, and whether a rule ended it."""

    calls: Sequence[Made]
    turns: int
    at_limit: bool
    stalled: bool

    @property
    def is_cut_short(self) -> bool:
        return self.at_limit or self.stalled


def played(case: Case) -> Played:
    """Play a case by the decisions alone."""
    made: list[Made] = []
    history: list[str] = []
    circles = 0
    for turn, said in enumerate(case.input["llm"]):
        if circles == 2 or not said["tool_calls"] or turn == case.input["max_tool_steps"]:
            return Played(made, turn, bool(said["tool_calls"]) or turn == case.input["max_tool_steps"], circles == 2)
        verdicts = [_verdict(case, said["tool_calls"], at, history) for at in range(len(said["tool_calls"]))]
        made += [Made(turn, *one) for one in zip(said["tool_calls"], verdicts, strict=True)]
        circles = circles + 1 if set(verdicts) <= {"blocked", "repeated"} else 0
    return Played(made, len(case.input["llm"]), True, circles == 2)


def _verdict(case: Case, calls: Sequence[str], at: int, history: list[str]) -> str:
    name = calls[at]
    if name in calls[:at]:
        return "repeated"
    blocked = _is_circle([*history, name])
    history.append(name)
    if blocked:
        return "blocked"
    if at >= case.input["max_tool_steps"]:
        return "beyond"
    return "run" if name in case.input["tools"] else "unknown"


def _is_circle(calls: Sequence[str]) -> bool:
    name, window = calls[-1], calls[-8:]
    in_a_row = len(calls) >= 3 and set(calls[-3:]) == {name}
    alternating = len(window) == 8 and len(set(window)) == 2 and len({*window[::2]}) == len({*window[1::2]}) == 1
    return in_a_row or calls[-9:-1].count(name) >= 4 or alternating


def _differ(case: Case, *verdicts: str) -> bool:
    return case.profile == "real" and any(call.verdict in verdicts for call in played(case).calls)


def _results(case: Case, expected: Expected) -> Expected:
    results = []
    for call in played(case).calls:
        told: dict[str, Any] = {"step_number": call.turn + 1, "tool_name": call.tool}
        behaviour = case.input["tools"].get(call.tool, {})
        if call.verdict == "run" and "ok" in behaviour:
            results.append({**told, "status": "success", "result": behaviour["ok"]})
        else:
            results.append(
                {**told, "status": "failure", "error": "*" if call.verdict != "run" else behaviour["error"]}
            )
    executed = sum(result["status"] == "success" for result in results)
    return {**expected, "execution_results": results, "tool_calls_executed": executed}


def _is_ended_by_a_rule(case: Case, expected: Expected) -> bool:
    return case.profile == "real" and played(case).is_cut_short


def _answered_without_tools(case: Case, expected: Expected) -> Expected:
    loop = played(case)
    texts = [said["text"] for said in case.input["llm"]]
    status = "completed" if loop.stalled else "failed"
    return {
        **expected,
        "llm_calls": loop.turns + 1,
        "response_text": texts[min(loop.turns, len(texts) - 1)],
        "plan_status": status,
        "task_status": status,
    }


TOOL_LOOP_RULES: tuple[Rule, ...] = (
    Rule(
        "an unknown tool is an error",
        4,
        "tool_loop",
        lambda case, expected: _differ(case, "unknown"),
        _results,
    ),
    Rule(
        "a repetition is not made",
        17,
        "tool_loop",
        lambda case, expected: _differ(case, "blocked", "repeated"),
        _results,
    ),
    Rule(
        "a turn has as many calls as the loop has turns",
        31,
        "tool_loop",
        lambda case, expected: _differ(case, "beyond"),
        _results,
    ),
    Rule(
        "every call has its tool message",
        19,
        "tool_loop",
        lambda case, expected: "tool_messages" in expected,
        lambda case, expected: {**expected, "tool_messages": len(played(case).calls)},
    ),
    Rule("at the limit one more call answers", 31, "tool_loop", _is_ended_by_a_rule, _answered_without_tools),
)

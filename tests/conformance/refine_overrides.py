"""Where docs/decisions.md overrides a case of the refine loop's suites, `agently_plan` and `duplicate_guard`.

The original's guard changed twice, and neither version does what its document says; here that is written down once
more, as plainly as possible, without the product's code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.conformance import oracle
from tests.conformance.cases import Case
from tests.conformance.rule import Expected, Rule


def same(call: Mapping[str, Any]) -> str:
    """Return a text that equal calls have in common."""
    return json.dumps([call.get("name", call.get("tool")), call.get("args") or {}], sort_keys=True)


def blocked(prior: Sequence[str], calls: Sequence[str]) -> list[int]:
    """Return which calls D17 blocks: a third in a row, a fifth of nine, the eighth that alternates between two."""
    history, found = list(prior), []
    for number, call in enumerate(calls):
        seven = [*history[-7:], call]
        alternates = len(seven) == 8 and len(set(seven)) == 2 and seven[:6] == seven[2:]
        if history[-2:] == [call, call] or history[-8:].count(call) >= 4 or (alternates and seven[0] != seven[1]):
            found.append(number)
        history.append(call)
    return found


def _blocked_by_d17(case: Case, expected: Expected) -> Expected:
    given = case.input
    return {"blocked": blocked([same(call) for call in given["prior"]], [same(call) for call in given["calls"]])}


def _refined(case: Case, expected: Expected) -> Expected:
    """Return the steps that are carried out: none twice, none blocked, and none after a question or an abort."""
    steps = case.input["steps"]
    ends = [number for number, step in enumerate(steps) if step.get("type") in ("elicitation", "abort")]
    steps = steps[: ends[0] + 1] if ends else steps
    seen: set[str] = set()
    kept = []
    for step in steps:
        if step.get("type") != "tool" or same(step) not in seen:
            kept.append(step)
            seen.add(same(step))
    calls = [step for step in kept if step.get("type") == "tool"]
    stopped = blocked([same(call) for call in case.input["prior"]], [same(call) for call in calls])
    refused = [id(calls[number]) for number in stopped]
    return {"steps": [step for step in kept if id(step) not in refused]}


def _is_cut(case: Case, expected: Expected) -> bool:
    steps = case.input["steps"]
    return any(step.get("type") in ("elicitation", "abort") for step in steps[:-1])


def _outputs(case: Case) -> list[Any]:
    found = []
    for text in case.input["results"]:
        try:
            output = json.loads(text)
        except ValueError:
            output = None
        found.append(output if isinstance(output, dict) else {"text": text})
    return found


def _resolved(case: Case, expected: Expected) -> Expected:
    return {"args": oracle.resolved(case.input["args"], _outputs(case))}


def _texts(case: Case) -> list[str]:
    return [text for _, text in oracle.strings(case.input["args"])]


def _is_of_text(case: Case, expected: Expected) -> bool:
    """True where the whole output of a tool that printed text is referenced."""
    whole = [found[0] for text in _texts(case) if (found := oracle.read(text)) is not None and not found[1]]
    return any(step < len(case.input["results"]) and "text" in _outputs(case)[step] for step in whole)


def _is_absent(case: Case, expected: Expected) -> bool:
    return any(oracle.read(text) is not None and expected["args"] == case.input["args"] for text in _texts(case))


def _reads_otherwise(case: Case, expected: Expected) -> bool:
    return bool(_resolved(case, expected) != expected)


def _decided_once(case: Case, expected: Expected) -> bool:
    """True for an empty question, which is none of the decisions that a model may take."""
    text = case.input["text"]
    return '"type":"elicitation"' in text.replace(" ", "") and expected.get("elicitation") is None


def _tried(case: Case, expected: Expected) -> Expected:
    """Return what extra attempts after errors that may pass come to; an empty result is a result."""
    for number, outcome in enumerate(case.input["outcomes"], 1):
        if "ok" in outcome:
            return {"attempts": number, "result": outcome["ok"]}
        if number > case.input["retries"]:
            return {"attempts": number, "error": outcome["error"]}
    return expected


def _names_reason_in_words(case: Case, expected: Expected) -> Expected:
    """Return an outcome that tells the reason itself; the original's fields for it are its own."""
    found = [part for part in expected["user_message_contains"] if part not in ("declineReason", "cancelReason")]
    return {**expected, "user_message_contains": [*found, *filter(None, [case.input.get("reason")])]}


def _only_once(case: Case, expected: Expected) -> Expected:
    """Return the results without those of a call that the plan has made before."""
    steps = [same(step) for step in case.input["plan"]["steps"] if step.get("type", "tool") == "tool"]
    results = expected["results"]
    return {**expected, "results": [one for at, one in enumerate(results) if same(one) not in steps[:at]]}


def _repeats(case: Case, expected: Expected) -> bool:
    steps = [same(step) for step in case.input["plan"]["steps"] if step.get("type", "tool") == "tool"]
    return len(set(steps)) < len(steps)


def _has_earlier_results(case: Case, expected: Expected) -> bool:
    earlier = [same(one) for one in case.input["results"]]
    return any(same(step) in earlier for step in case.input["plan"]["steps"])


def _with_earlier_results(case: Case, expected: Expected) -> Expected:
    own = expected["results"][-len(case.input["plan"]["steps"]) :]
    return {**expected, "results": [*case.input["results"], *own]}


def _refers_to_earlier_rounds(case: Case, expected: Expected) -> bool:
    return bool(case.input["results"]) and _over_the_job(case, expected) != expected


def _over_the_job(case: Case, expected: Expected) -> Expected:
    """Return the results with `$step[N]` counted over the whole job; a text stands wrapped in its output."""
    outputs = []
    results = []
    for one in expected["results"]:
        found = {**one, "args": oracle.resolved(one["args"], outputs)}
        results.append(found)
        outputs.append({"text": one["result"]} if "result" in one else None)
    return {**expected, "results": results}


def _text_only(case: Case, expected: Expected) -> bool:
    return expected["elicitation"] is None and bool(_contents(case))


def _contents(case: Case) -> list[str]:
    steps = case.input["plan"]["steps"]
    asks = [step for step in steps if step.get("type") == "elicitation" and not step.get("elicitation")]
    return [step["content"] for step in asks if step.get("content")]


def _lacks(case: Case, expected: Expected) -> bool:
    message = (expected.get("elicitation") or {}).get("message", "")
    return "requires additional parameters" in message


def _is_denied(case: Case, expected: Expected) -> bool:
    return any("not allowed by policy" in one.get("error", "") for one in expected["results"])


def _in_its_own_words(case: Case, expected: Expected) -> Expected:
    said = "not allowed by policy"
    results = [{**one, "error": "*"} if said in one.get("error", "") else one for one in expected["results"]]
    return {**expected, "results": results}


def _always(case: Case, expected: Expected) -> bool:
    return True


def _rule(
    name: str, decision: int, op: str, rewrite: Callable[[Case, Expected], Expected], applies: Any = _always
) -> Rule:
    return Rule(name, decision, op, applies, rewrite)


GUARD_RULES: tuple[Rule, ...] = (_rule("history is all entries, blocked ones too", 17, "sequence", _blocked_by_d17),)

REFINE_RULES: tuple[Rule, ...] = (
    _rule("what follows a question or an abort is dropped", 36, "refine", _refined, _is_cut),
    _rule("no call is made twice, and none that goes in circles", 17, "refine", _refined),
    _rule("text is wrapped", 26, "placeholders", _resolved, _is_of_text),
    _rule("what is absent is null", 3, "placeholders", _resolved, _is_absent),
    _rule("array indices are read, and blanks are not trimmed", 2, "placeholders", _resolved, _reads_otherwise),
    _rule("a decision is checked strictly", 5, "parse_answer", lambda case, expected: {"error": True}, _decided_once),
    _rule("the reason is told in words", 33, "resolve_elicitation", _names_reason_in_words),
    _rule("no call is made twice in one plan", 17, "run_plan", _only_once, _repeats),
    _rule("no result of before is forgotten", 17, "run_plan", _with_earlier_results, _has_earlier_results),
    _rule("indices count over the whole job", 2, "run_plan", _over_the_job, _refers_to_earlier_rounds),
    _rule(
        "a question may be a text alone",
        1,
        "run_plan",
        lambda case, expected: {**expected, "elicitation": {"message": _contents(case)[0]}},
        _text_only,
    ),
    _rule(
        "what is missing is asked for before the call",
        35,
        "run_plan",
        lambda case, expected: {**expected, "called": []},
        _lacks,
    ),
    _rule("a denied call has failed, in planq's own words", 30, "run_plan", _in_its_own_words, _is_denied),
    _rule("retries are extra attempts, after errors that may pass", 10, "retries", _tried),
)

"""Where docs/decisions.md overrides a `real` case: one table of rules.

A rule looks at a case's input and expectation, never at its id, so that cases nobody here has seen are judged the
same way. It rewrites the expectation into what the named decision asks for; the product must then meet it.
The rules apply one after the other, each to what the former made of the expectation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.conformance import oracle
from tests.conformance.cases import Case
from tests.conformance.guiding import GUIDE_RULES
from tests.conformance.inbound_overrides import INBOUND_RULES
from tests.conformance.oracle import Place
from tests.conformance.orchestrate import ORCHESTRATE
from tests.conformance.orchestrate_overrides import ORCHESTRATE_RULES
from tests.conformance.refine_overrides import GUARD_RULES, REFINE_RULES
from tests.conformance.rule import Expected, Rule
from tests.conformance.tool_loop_overrides import TOOL_LOOP_RULES


def expectation(case: Case) -> tuple[Expected, list[Rule]]:
    """Return what planq must answer to a case, and the rules that made the difference."""
    case = case.winner
    expected, used = case.expected, []
    for rule in TABLES.get(case.suite, RULES):
        if rule.op == case.op and rule.applies(case, expected):
            rewritten = rule.rewrite(case, expected)
            if rewritten != expected:
                expected = rewritten
                used.append(rule)
    return expected, used


# --- template_validation: validate ------------------------------------------------------------------------------


def _output_schema(case: Case, call: int) -> Any:
    if "schemas" in case.input:
        listed = case.input["schemas"]
        return listed[call][1] if call < len(listed) else None
    return _tool(case, call).get("output_schema")


def _tool(case: Case, call: int) -> Mapping[str, Any]:
    name = case.input["calls"][call]["tool_name"]
    return next((tool for tool in case.input.get("tools", ()) if tool["name"] == name), {})


def _reading(case: Case, place: Place) -> dict[str, Any] | None:
    """Say which error D2 and D4 give one reference, None for none."""
    if place.path is None or _is_odd(case, place):
        return {"type": "invalid_template_syntax"}
    if place.step == place.call:
        return {"type": "self_reference"}
    if place.step > place.call:
        return {"type": "forward_reference", "referenced_index": place.step}
    tool_name = case.input["calls"][place.step]["tool_name"]
    schema = _output_schema(case, place.step)
    if schema is None:
        return {"type": "no_output_schema", "tool_name": tool_name}
    ruled_out = oracle.absent(schema, place.path)
    if ruled_out is not None:
        field, fields = ruled_out
        return {"type": "field_not_found", "tool_name": tool_name, "field": field, "available_fields": fields}
    expected = oracle.type_at(_tool(case, place.call).get("input_schema"), place.pointer.split("/")[1:])
    actual = "string" if place.embedded else oracle.type_at(schema, place.path)
    if None in (expected, actual) or actual == expected or {actual, expected} == {"integer", "number"}:
        return None
    return {"type": "type_mismatch", "expected": expected, "actual": actual}


def _read_again(chosen: Callable[[Case, Place], bool]) -> tuple[Any, Any]:
    """Make a rule's two functions from a choice of references whose errors are those of `_reading`."""

    def differing(case: Case) -> list[Place]:
        return [place for place in oracle.places(case.input["calls"]) if chosen(case, place)]

    def rewrite(case: Case, expected: Expected) -> Expected:
        left = list(expected["errors"])
        errors: list[dict[str, Any]] = []
        for call in range(len(case.input["calls"])):
            for place in oracle.places(case.input["calls"]):
                if place.call != call:
                    continue
                own = next(
                    (one for one in left if (one["tool_index"], one["template"]) == (call, place.template)), None
                )
                if own is not None:
                    left.remove(own)
                if chosen(case, place):
                    error = _reading(case, place)
                    own = error and {
                        "tool_index": call,
                        "argument": place.pointer,
                        "template": place.template,
                        "error": error,
                    }
                if own:
                    errors.append(own)
            errors += [one for one in left if one["tool_index"] == call]
            left = [one for one in left if one["tool_index"] != call]
        return _with_errors(expected, errors + left)

    return (lambda case, expected: case.profile == "real" and bool(differing(case))), rewrite


def _with_errors(expected: Expected, errors: list[dict[str, Any]]) -> Expected:
    changed = {**expected, "valid": not errors, "errors": errors}
    if errors[:1] != expected["errors"][:1]:
        # The text belonged to an error that is no longer the first.
        changed.pop("rendered_contains", None)
    return changed


def _is_odd(case: Case, place: Place) -> bool:
    """Tell whether a path holds what names seldom do, in a name that the output's schema does not declare."""
    declared = json.dumps(_output_schema(case, place.step)) if 0 <= place.step < place.call else ""
    return any(oracle.ODD.search(part) and json.dumps(part) not in declared for part in place.path or ())


def _is_nearly(case: Case, place: Place) -> bool:
    """Tell whether what the original took for text, or for a path, is refused."""
    return place.path is None or _is_odd(case, place)


def _is_whole(case: Case, place: Place) -> bool:
    return place.path == ()


def _is_number_for_integer(error: Mapping[str, Any]) -> bool:
    found = error["error"]
    return (found["type"], found.get("expected"), found.get("actual")) == ("type_mismatch", "integer", "number")


def _is_deep(case: Case, place: Place) -> bool:
    error = _reading(case, place)
    return error is not None and error["type"] == "field_not_found" and error["field"] != (place.path or ("",))[0]


def _is_mismatched(case: Case, place: Place) -> bool:
    error = _reading(case, place)
    return error is not None and error["type"] == "type_mismatch"


def _is_open(case: Case, place: Place) -> bool:
    schema = _output_schema(case, place.step) if 0 <= place.step < place.call else None
    return isinstance(schema, Mapping) and bool(schema.get("additionalProperties"))


def _unknown(case: Case) -> list[int]:
    known = [tool["name"] for tool in case.input.get("tools", ())]
    calls = case.input["calls"] if "tools" in case.input else []
    return [number for number, call in enumerate(calls) if call["tool_name"] not in known]


def _with_unknown_tools(case: Case, expected: Expected) -> Expected:
    available = sorted(tool["name"] for tool in case.input["tools"])
    errors = []
    for number, call in enumerate(case.input["calls"]):
        errors += [error for error in expected["errors"] if error["tool_index"] == number]
        if number in _unknown(case):
            details = {"type": "unknown_tool", "tool_name": call["tool_name"], "available_tools": available}
            errors.append({"tool_index": number, "argument": "", "template": None, "error": details})
    return _with_errors(expected, errors)


def _missing(case: Case) -> list[int]:
    """Return the calls that leave out an argument which the input schema requires."""
    calls = case.input["calls"] if "tools" in case.input else []
    return [
        number
        for number, call in enumerate(calls)
        if set((_tool(case, number).get("input_schema") or {}).get("required", ())) - set(call["arguments"])
    ]


def _with_missing_arguments(case: Case, expected: Expected) -> Expected:
    errors = []
    for number, call in enumerate(case.input["calls"]):
        errors += [error for error in expected["errors"] if error["tool_index"] == number]
        if number in _missing(case):
            details = {"type": "invalid_argument", "tool_name": call["tool_name"], "message": "*"}
            errors.append({"tool_index": number, "argument": "", "template": None, "error": details})
    return _with_errors(expected, errors)


def _has_dotted_arguments(case: Case, expected: Expected) -> bool:
    return any(error["template"] is not None for error in expected["errors"])


def _with_pointers(case: Case, expected: Expected) -> Expected:
    """Replace the original's dotted argument, sometimes wrong or empty, by the pointer of the string it means."""
    unused = list(oracle.places(case.input["calls"]))
    errors = []
    for error in expected["errors"]:
        fitting = [one for one in unused if (one.call, one.template) == (error["tool_index"], error["template"])]
        if fitting:
            dotted = "/" + error["argument"].replace(".", "/")
            place = next((one for one in fitting if one.pointer in (dotted, error["argument"])), fitting[0])
            unused.remove(place)
            error = {**error, "argument": place.pointer}
        errors.append(error)
    return {**expected, "errors": errors}


# --- the other suites ---------------------------------------------------------------------------------------------


def _finds_more(case: Case, expected: Expected) -> bool:
    return bool(_templates(case) != expected["templates"])


def _templates(case: Case) -> list[str]:
    return [place.template for place in oracle.places([{"arguments": case.input["value"]}])]


def _reads_otherwise(case: Case, expected: Expected) -> bool:
    text = case.input["text"]
    found = oracle.read(text)
    return found is not None and ("[" in text or not found[1])


def _parsed(case: Case, expected: Expected) -> Expected:
    step, path = oracle.read(case.input["text"]) or (0, ())
    return {"ref": {"tool_index": step, "field_path": list(path)}}


def _has_newer_grammar(case: Case, expected: Expected) -> bool:
    """True when the arguments use what only D2 knows: array indices, brackets, the alias, embedding."""
    return bool(oracle.resolved(case.input["arguments"], case.input["results"]) != expected["arguments"]) and any(
        "[" in text or "{{" in text or text.endswith(".output") or any(part.isdigit() for part in text.split(".")[2:])
        for _, text in oracle.strings(case.input["arguments"])
    )


def _breaks_planning_schema(case: Case, expected: Expected) -> bool:
    plan = case.input["plan"]
    if not isinstance(plan, Mapping):
        return False
    calls = plan.get("calls")
    is_empty = plan.get("type") == "tool_calls" and calls == []
    is_both = bool(plan.get("content")) and bool(calls)
    is_unknown = bool(set(plan) - {"type", "content", "reasoning", "calls"})
    known = {"tool_name", "arguments", "depends_on", "retries", "timeout_seconds"}
    has_unknown = any(isinstance(call, Mapping) and set(call) - known for call in calls or ())
    return is_empty or is_both or is_unknown or has_unknown


def _plan_in_text(case: Case) -> Any:
    text = case.input.get("provider_text") or ""
    if case.input.get("provider_tool_calls"):
        return None
    try:
        found = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return None
    return found if found.get("type") in ("direct_response", "tool_calls") else None


def _is_text_only(case: Case, expected: Expected) -> bool:
    result = case.input["result"]
    return result is not None and not result.get("isError") and result.get("structuredContent") is None


def _texts(case: Case) -> str:
    return "\n".join(block["text"] for block in case.input["result"].get("content", ()) if block["type"] == "text")


def _is_wrapper(content: Any) -> bool:
    return isinstance(content, Mapping) and {"artifact_id", "artifact", "_metadata"} <= content.keys()


def _inner_skill(case: Case) -> Any:
    content = case.input["content"]
    if not _is_wrapper(content) or not isinstance(content["artifact"], Mapping):
        return None
    metadata = content["_metadata"] if isinstance(content["_metadata"], Mapping) else {}
    outer = [content.get("skill_id"), metadata.get("skill_id")]
    inner = content["artifact"].get("skill_id")
    return inner if isinstance(inner, str) and not any(isinstance(one, str) for one in outer) else None


def _top_skill(case: Case) -> Any:
    content = case.input["content"]
    skill = content.get("skill_id") if isinstance(content, Mapping) else None
    return skill if isinstance(skill, str) else None


RULES: tuple[Rule, ...] = (
    Rule(
        "brackets are array indices",
        2,
        "validate",
        *_read_again(
            lambda case, place: place.path is not None and oracle.BRACKETS.search(place.template) is not None
        ),
    ),
    Rule(
        "$step[N] is an alias",
        2,
        "validate",
        *_read_again(lambda case, place: oracle.ALIAS.match(place.template) is not None),
    ),
    Rule("what is nearly a reference is refused", 2, "validate", *_read_again(_is_nearly)),
    Rule("the whole output is a reference", 2, "validate", *_read_again(_is_whole)),
    Rule(
        "a number may be an integer",
        4,
        "validate",
        lambda case, expected: any(map(_is_number_for_integer, expected["errors"])),
        lambda case, expected: _with_errors(
            expected, [error for error in expected["errors"] if not _is_number_for_integer(error)]
        ),
    ),
    Rule("references inside a text count", 2, "validate", *_read_again(lambda case, place: place.embedded)),
    Rule("every segment is checked", 4, "validate", *_read_again(_is_deep)),
    Rule("fields beyond the declared ones may be allowed", 4, "validate", *_read_again(_is_open)),
    Rule("types are compared", 4, "validate", *_read_again(_is_mismatched)),
    Rule(
        "unknown tools are errors",
        4,
        "validate",
        lambda case, expected: case.profile == "real" and bool(_unknown(case)),
        _with_unknown_tools,
    ),
    Rule(
        "literal arguments are checked",
        4,
        "validate",
        lambda case, expected: case.profile == "real" and bool(_missing(case)),
        _with_missing_arguments,
    ),
    Rule("argument is a JSON pointer", 4, "validate", _has_dotted_arguments, _with_pointers),
    Rule(
        "references inside a text are found",
        2,
        "find_templates",
        _finds_more,
        lambda case, expected: {"templates": _templates(case)},
    ),
    Rule("brackets and the alias are read", 2, "parse", _reads_otherwise, _parsed),
    Rule(
        "indices, brackets, the alias and embedding are resolved",
        2,
        "resolve",
        _has_newer_grammar,
        lambda case, expected: {"arguments": oracle.resolved(case.input["arguments"], case.input["results"])},
    ),
    Rule(
        "a plan fits the schema of __planning__ strictly",
        5,
        "parse_plan_json",
        _breaks_planning_schema,
        lambda case, expected: {"error": True},
    ),
    Rule(
        "a plan in a text is a plan",
        5,
        "classify_plan",
        lambda case, expected: _plan_in_text(case) is not None,
        lambda case, expected: _plan_in_text(case),
    ),
    Rule(
        "text is wrapped",
        26,
        "tool_outcome",
        _is_text_only,
        lambda case, expected: {"output": {"text": _texts(case)}},
    ),
    Rule(
        "a wrapper has an artifact id",
        22,
        "detect_wrapper",
        lambda case, expected: expected["is_tool_response"] and not _is_wrapper(case.input["content"]),
        lambda case, expected: {"is_tool_response": False},
    ),
    Rule(
        "the skill inside a wrapped artifact counts",
        22,
        "extract_skill_id",
        lambda case, expected: _inner_skill(case) is not None,
        lambda case, expected: {"skill_id": _inner_skill(case)},
    ),
    Rule(
        "the skill of a parsed response is looked for in the same places",
        22,
        "parse_tool_response",
        lambda case, expected: expected["ok"] and (_top_skill(case) or _inner_skill(case)) is not None,
        lambda case, expected: {**expected, "skill_id": _top_skill(case) or _inner_skill(case)},
    ),
)

TABLES: Mapping[str, tuple[Rule, ...]] = {
    **dict.fromkeys(ORCHESTRATE, ORCHESTRATE_RULES),
    "inbound_flow": (*TOOL_LOOP_RULES, *INBOUND_RULES, *GUIDE_RULES),
    "agently_plan": REFINE_RULES,
    "duplicate_guard": GUARD_RULES,
}
"""The rules of suites that have a table of their own, for their operations are called as those of others."""

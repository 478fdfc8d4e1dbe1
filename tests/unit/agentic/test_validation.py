"""Plan-time checks (docs/decisions.md, D4): every defect of every call, in order."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.plan.compile import compile_plan
from planq.shared.agentic.plan.document import Call, Plan, parse_plan
from planq.shared.agentic.plan.errors import PlanError, format_plan_errors
from planq.shared.agentic.plan.forms import readable_part_of
from planq.shared.agentic.plan.validation import MAX_ARGUMENTS_BYTES, further_errors, validate_plan
from planq.shared.agentic.references.grammar import Reference
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.kernel.states import Effect
from planq.shared.platform.errors import PlanInvalid
from tests.unit.agentic.strategies import json_values

INPUT = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1},
        "ratio": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["text"],
    "additionalProperties": False,
}
OUTPUT = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "n": {"type": "integer"}, "any": {}, "o": {"type": "object"}},
}
TOOLS = {
    "web_search": ToolDefinition(name="web_search", input_schema=INPUT, output_schema=OUTPUT, effect=Effect.READ),
    "save": ToolDefinition(name="save", input_schema=INPUT, output_schema=OUTPUT, effect=Effect.UNSAFE),
    "opaque": ToolDefinition(name="opaque", effect=Effect.PURE),
}


def check(*calls: dict[str, Any], max_steps: int = 10, tools: dict[str, ToolDefinition] = TOOLS) -> list[PlanError]:
    return validate_plan(parse_plan({"calls": list(calls)}), tools, max_steps=max_steps)


def search(**arguments: Any) -> dict[str, Any]:
    return {"tool_name": "web_search", "arguments": {"text": "x", **arguments}}


def shapes(errors: list[PlanError]) -> list[tuple[int | None, str, str]]:
    return [(error.tool_index, error.argument, error.type) for error in errors]


def test_a_good_plan_has_no_errors_and_aliases_are_names() -> None:
    assert (
        check(
            search(limit=3),
            {"tool_name": "web.search", "arguments": {"text": "about {{ $0.output.n }}", "ratio": "$0.output.n"}},
            {"tool_name": "save", "arguments": {"text": "$1.output.any", "tags": ["a", "$0.output.text"]}},
        )
        == []
    )


def test_all_defects_come_at_once_in_order_of_calls_and_arguments() -> None:
    errors = check(
        {"tool_name": "save", "arguments": {"text": "$0.output.text", "limit": "$x.output.y", "extra": 1}},
        {"tool_name": "ghost", "arguments": {"a": "$0.output.nope", "b": "$7.output.a"}, "depends_on": [1, 9]},
        {"tool_name": "save", "arguments": {"text": "$0.output.n", "limit": "no {{ $0.output.text }}"}},
        search(text=5, limit="$1.output.v", tags=["a", 2]),
        max_steps=3,
    )
    assert shapes(errors) == [
        (0, "/text", "self_reference"),
        (0, "/limit", "invalid_template_syntax"),
        (0, "", "invalid_argument"),
        (1, "/a", "field_not_found"),
        (1, "/b", "forward_reference"),
        (1, "", "unknown_tool"),
        (1, "", "invalid_dependency"),
        (1, "", "invalid_dependency"),
        (2, "/text", "type_mismatch"),
        (2, "/limit", "type_mismatch"),
        (3, "/limit", "no_output_schema"),
        (3, "/text", "invalid_argument"),
        (3, "/tags/1", "invalid_argument"),
        (None, "", "too_many_steps"),
    ]
    assert errors[3].details == {"tool_name": "save", "field": "nope", "available_fields": ["text", "n", "any", "o"]}
    assert errors[5].details == {"tool_name": "ghost", "available_tools": ["opaque", "save", "web_search"]}
    assert errors[8].details == {"expected": "string", "actual": "integer"}
    assert errors[9].details == {"expected": "integer", "actual": "string"}
    text = format_plan_errors(errors)
    assert text.startswith("Plan validation failed:\n- ")
    assert text.count("\n") == len(errors)


@pytest.mark.parametrize(
    "argument",
    [
        *(
            "{{ $0.output.text",
            "a {{ $0.value }}",
            "$0.output['text']",
            "$0.OUTPUT.text",
            "$0.value",
            " $0.output.text",
        ),
        *("$0.output.text | upper", "{{ $0.output.text | upper }}", "$0.output.text is it", "$0.output.any of it"),
        *("$0.output.text {{ $0.output.n }}", "$0.output.o.k, $0.output.text", "$9.output.x + 1"),
    ],
)
def test_what_is_nearly_a_reference_is_refused_and_never_taken_as_text(argument: str) -> None:
    (error,) = check(search(), search(text=argument))
    assert (error.tool_index, error.argument, error.type) == (1, "/text", "invalid_template_syntax")
    assert "{{ $0.output.title }} inside a longer one" in error.render()
    assert check(search(), search(text="\\" + argument.lstrip()) if argument.lstrip()[0] == "$" else search()) == []


def test_a_field_with_a_blank_in_its_name_is_one_where_the_schema_declares_it() -> None:
    columns = {"type": "object", "additionalProperties": True, "properties": {"unit price": {"type": "number"}}}
    tools = TOOLS | {"table": ToolDefinition(name="table", output_schema=columns, effect=Effect.READ)}
    table = {"tool_name": "table"}

    assert check(table, search(ratio="$0.output.unit price"), tools=tools) == []
    (error,) = check(table, search(ratio="$0.output.list price"), tools=tools)
    assert error.type == "invalid_template_syntax"


def test_a_field_with_a_dot_in_its_name_is_checked_as_any_other() -> None:
    priced = ToolDefinition(
        name="price",
        output_schema={"properties": {"unit.price": {"type": "number"}}, "additionalProperties": False},
        effect=Effect.READ,
    )
    tools = TOOLS | {"price": priced}
    price: dict[str, Any] = {"tool_name": "price", "arguments": {}}
    good = search(ratio='$0.output["unit.price"]', text='{{ $0.output["unit.price"] }} each')
    assert check(price, good, tools=tools) == []
    wrong = check(price, search(ratio="$0.output.unit.price", tags='$0.output["unit.price"]'), tools=tools)
    assert [(error.argument, error.type) for error in wrong] == [
        ("/ratio", "field_not_found"),
        ("/tags", "type_mismatch"),
    ]


def test_the_whole_output_is_of_the_type_that_its_schema_declares() -> None:
    tools = TOOLS | {"show": ToolDefinition(name="show", input_schema={"properties": {"data": {"type": "object"}}})}
    show = {"tool_name": "show", "arguments": {"data": "$0.output"}}

    assert check(search(), show, tools=tools) == []
    assert check(search(), search(text="all: {{ $0.output }}")) == []
    (error,) = check(search(), search(text="$0.output"))
    assert (error.type, error.details) == ("type_mismatch", {"expected": "string", "actual": "object"})


def test_a_number_may_be_an_integer_and_an_integer_is_a_number() -> None:
    sums = {"type": "object", "properties": {"result": {"type": "number"}}}
    tools = TOOLS | {"sum": ToolDefinition(name="sum", output_schema=sums, effect=Effect.PURE)}

    assert check({"tool_name": "sum"}, search(limit="$0.output.result", ratio="$0.output.result"), tools=tools) == []


def test_a_missing_required_argument_is_found_although_others_are_references() -> None:
    (error,) = check(search(), {"tool_name": "save", "arguments": {"limit": "$0.output.n"}})
    assert (error.tool_index, error.argument, error.type) == (1, "", "invalid_argument")
    assert "'text'" in error.render()


def test_an_ambiguous_name_is_refused_and_an_exact_one_wins() -> None:
    tools = {name: ToolDefinition(name=name) for name in ("a_b", "a-b")}
    assert check({"tool_name": "a_b"}, tools=tools) == []
    (error,) = check({"tool_name": "a.b"}, tools=tools)
    assert (error.type, error.details["candidates"]) == ("ambiguous_tool", ["a-b", "a_b"])


def test_a_later_dependency_is_allowed_until_it_closes_a_cycle() -> None:
    later = {**search(), "depends_on": [1]}
    assert check(later, search()) == []
    (error,) = check(later, {"tool_name": "save", "arguments": {"text": "x"}})
    assert (error.type, error.details) == ("dependency_cycle", {"steps": [0, 1]})


def test_the_whole_argument_tree_is_bounded() -> None:
    deep: Any = "$0.output.n"
    for _ in range(5_000):
        deep = [deep]
    plan = Plan(calls=[Call(tool_name="opaque", arguments={"a": deep})])
    assert shapes(validate_plan(plan, TOOLS, max_steps=10)) == [(0, "", "too_deep")]
    large = {"tool_name": "opaque", "arguments": {"a": "x" * MAX_ARGUMENTS_BYTES}}
    assert shapes(check(large)) == [(0, "", "too_large")]
    over = check(large)[0].details["actual"] - MAX_ARGUMENTS_BYTES
    largest, larger = ("x" * (MAX_ARGUMENTS_BYTES - n) for n in (over, over - 1))
    assert check({"tool_name": "opaque", "arguments": {"a": largest}}) == []
    assert shapes(check({"tool_name": "opaque", "arguments": {"a": larger}})) == [(0, "", "too_large")]
    fits: Any = 1
    for _ in range(MAX_DEPTH - 1):
        fits = [fits]
    assert check({"tool_name": "opaque", "arguments": {"a": fits}}) == []


def test_the_arguments_of_each_call_are_bounded_not_those_of_all_together() -> None:
    half = {"tool_name": "opaque", "arguments": {"a": "x" * (MAX_ARGUMENTS_BYTES // 2)}}
    large = {"tool_name": "opaque", "arguments": {"a": "x" * MAX_ARGUMENTS_BYTES}}
    assert check(half, half, half) == []
    assert shapes(check(half, large, half)) == [(1, "", "too_large")]


def test_ten_thousand_calls_are_validated_and_compiled_in_seconds() -> None:
    names = ("save", "web_search")
    calls = [search()]
    calls += [
        {
            "tool_name": names[index % 2],
            "arguments": {"text": f"{{{{ ${index}.output.n }}}}", "tags": ["$0.output.text"]},
        }
        for index in range(9_999)
    ]
    plan = parse_plan({"calls": calls})
    started = time.process_time()
    assert validate_plan(plan, TOOLS, max_steps=10_000) == []
    compile_plan(plan, TOOLS)
    assert time.process_time() - started < 30  # of CPU: 0.8 s here


@pytest.mark.parametrize("kind", ["\n- injected", "x" * 9_999])
def test_a_rendered_defect_is_one_short_line(kind: str) -> None:
    for error in check(
        {"tool_name": kind[:150], "arguments": {kind: f"$0.output.{kind[:50]}", "b": f"$x{kind}.output.a"}}
    ):
        assert "\n" not in error.render()
        assert len(error.render()) < 1_000


_texts = st.sampled_from(
    [
        "$0.output.text",
        "$1.output.n",
        "$9.output.a",
        "$x.output.y",
        "a {{ $0.output.o.k }} b",
        "plain",
        "$0.output.o.k.0",
    ]
)
_arguments = st.dictionaries(st.sampled_from(["text", "limit", "tags", "z"]), _texts | json_values, max_size=3)
_calls = st.builds(
    Call,
    tool_name=st.sampled_from([*TOOLS, "web.search", "ghost", "__planning__", "cp__x"]),
    arguments=_arguments,
    depends_on=st.none() | st.lists(st.integers(-1, 5), max_size=2),
)
_plans = st.lists(_calls, min_size=1, max_size=5).map(lambda calls: Plan(calls=calls))


@given(_plans, st.integers(1, 5))
def test_what_is_valid_compiles_and_what_is_not_is_explained(plan: Plan, max_steps: int) -> None:
    errors = validate_plan(plan, TOOLS, max_steps=max_steps)

    assert [e.tool_index for e in errors] == sorted(
        [e.tool_index for e in errors], key=lambda i: 99 if i is None else i
    )
    for error in errors:
        assert error.to_json()["error"]["type"] == error.type
        assert error.render()
    if not errors:
        steps = compile_plan(plan, TOOLS).steps
        assert [step.index for step in steps] == list(range(len(plan.calls)))
        assert all(set(step.inputs) <= set(step.depends_on) for step in steps)


@given(
    st.one_of(
        json_values,
        st.fixed_dictionaries({"calls": st.lists(json_values)}),
        st.fixed_dictionaries({"steps": st.lists(json_values)}),
    )
)
def test_the_readable_part_of_anything_can_be_checked(raw: Any) -> None:
    part = readable_part_of(raw)

    if part is not None:
        found = further_errors(part, TOOLS, max_steps=10, agents=None)
        assert not {error.tool_index for error in found} & part.unread


@given(_plans)
def test_compiling_any_plan_gives_steps_without_a_cycle_or_our_error(plan: Plan) -> None:
    try:
        length = 1 + max(step.path for step in compile_plan(plan, TOOLS).steps)
    except PlanInvalid as refused:
        length = len(refused.errors) and 1
    assert 1 <= length <= len(plan.calls)


@given(_plans)
def test_every_malformed_or_misplaced_reference_is_reported(plan: Plan) -> None:
    reported = {(e.tool_index, e.template) for e in validate_plan(plan, TOOLS, max_steps=10)}
    for number, call in enumerate(plan.calls):
        for template in call.arguments.values():
            if template == "$x.output.y" or template == str(Reference(9, ("a",))):
                assert (number, template) in reported

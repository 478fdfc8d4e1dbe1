"""From signature to schema, and from JSON arguments to JSON output."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import threading
from collections.abc import Callable
from datetime import date, timedelta
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from planq.shared.agentic.plan.document import parse_plan
from planq.shared.agentic.plan.validation import validate_plan
from planq.shared.agentic.schema.schemas import check_schema, violations
from planq.shared.agentic.tools.contract import Suspended, ToolContext
from planq.shared.agentic.tools.definition import TEXT_OUTPUT_SCHEMA, ToolDefinition
from planq.shared.kernel.states import Effect, Pool
from planq.shared.platform.errors import (
    InvalidArguments,
    InvalidOutput,
    Misconfigured,
)
from planq.shared.platform.values.encoding import output_text
from planq.worker.tools import ToolServices, tool
from tests.unit.tools.conftest import Make


class Colour(enum.Enum):
    RED = "red"


class Hit(BaseModel):
    title: str
    when: date


class SearchResult(BaseModel):
    hits: list[Hit]
    total: int = 0


class Pair(TypedDict):
    left: int
    right: int


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Node(BaseModel):
    name: str
    children: list[Node] = []


def test_signature_becomes_a_closed_object_schema(make: Make) -> None:
    @tool
    async def search(
        query: Annotated[str, Field(description="What to look for.", min_length=1)],
        limit: Annotated[int, Field(ge=1, le=20)] = 5,
        colour: Colour | None = None,
    ) -> SearchResult:
        """Find documents.

        More for people who read code.
        """
        raise AssertionError

    definition = make(search).definition

    assert definition.name == "search"
    assert definition.description == "Find documents."
    assert definition.input_schema["additionalProperties"] is False
    assert definition.input_schema["required"] == ["query"]
    properties = definition.input_schema["properties"]
    assert properties["query"] == {"description": "What to look for.", "minLength": 1, "type": "string"}
    assert properties["limit"] == {"default": 5, "maximum": 20, "minimum": 1, "type": "integer"}
    assert list(properties) == ["query", "limit", "colour"]
    check_schema(definition.input_schema, "input")
    assert definition.output_schema is not None
    assert definition.output_schema["type"] == "object"
    assert set(definition.output_schema["properties"]) == {"hits", "total"}
    check_schema(definition.output_schema, "output")


def test_defaults_follow_function_and_effect(make: Make) -> None:
    @tool
    def crunch(number: int) -> int:
        return number

    @tool(effect="read", skill_id="research")
    async def look() -> str:
        return ""

    plain, reading = make(crunch).definition, make(look).definition

    assert (plain.effect, plain.pool, plain.retries) == (Effect.UNSAFE, Pool.CPU, 0)
    assert (reading.effect, reading.pool, reading.retries) == (Effect.READ, Pool.IO, 2)
    assert reading.skill_id == "research"
    assert plain.source.startswith("python:")
    assert plain.source.endswith("crunch")


def test_parameter_names_that_pydantic_uses_itself_are_fine(make: Make, context: ToolContext) -> None:
    @tool
    async def odd(schema: str, model_config: int, json: bool, copy: list[str], _private: str = "p") -> dict[str, Any]:
        return {"all": [schema, model_config, json, copy, _private]}

    made = make(odd)

    assert list(made.definition.input_schema["properties"]) == ["schema", "model_config", "json", "copy", "_private"]
    output = asyncio.run(made.call({"schema": "s", "model_config": 1, "json": True, "copy": []}, context))
    assert output == {"all": ["s", 1, True, [], "p"]}


def test_context_and_services_are_injected_and_not_in_the_schema(
    make: Make, context: ToolContext, services: ToolServices
) -> None:
    seen: list[Any] = []

    @tool
    async def ask(whoever: ToolContext, question: str, offered: ToolServices) -> str:
        seen.extend([whoever, offered])
        return f"{question} for {whoever.user_id}"

    made = make(ask)

    assert list(made.definition.input_schema["properties"]) == ["question"]
    assert asyncio.run(made.call({"question": "why"}, context)) == {"text": "why for ada"}
    assert seen == [context, services]


def test_arguments_arrive_as_typed_values(make: Make, context: ToolContext) -> None:
    @tool
    async def take(hit: Hit, colour: Colour, point: Point, waits: list[date]) -> dict[str, Any]:
        assert isinstance(hit, Hit)
        assert isinstance(point, Point)
        return {"title": hit.title, "colour": colour.name, "x": point.x, "day": waits[0].day}

    arguments = {
        "hit": {"title": "t", "when": "2026-11-21"},
        "colour": "red",
        "point": {"x": 1, "y": 2},
        "waits": ["2026-11-21"],
    }

    assert asyncio.run(make(take).call(arguments, context)) == {"title": "t", "colour": "RED", "x": 1.0, "day": 21}


@pytest.mark.parametrize("arguments", [{}, {"number": "many"}, {"number": 1, "extra": 2}])
def test_arguments_that_do_not_fit_are_invalid_arguments(
    make: Make, context: ToolContext, arguments: dict[str, Any]
) -> None:
    @tool
    async def double(number: int) -> int:
        raise AssertionError("must not be called")

    with pytest.raises(InvalidArguments, match=r"double: (number|extra): "):
        asyncio.run(make(double).call(arguments, context))


async def _model() -> SearchResult:
    return SearchResult(hits=[Hit(title="a", when=date(2026, 11, 21))], total=1)


async def _model_as_dict() -> SearchResult:
    return {"hits": [], "total": 3}  # type: ignore[return-value]


async def _pair() -> Pair:
    return {"left": 1, "right": 2}


async def _point() -> Point:
    return Point(1.5, 2)


async def _tree() -> Node:
    return Node(name="root", children=[Node(name="leaf")])


async def _mapping() -> dict[str, list[int]]:
    return {"a": [1]}


async def _either() -> Hit | Pair:
    return {"left": 1, "right": 2}


async def _text() -> str:
    return "hello"


async def _nothing() -> None:
    return None


async def _unannotated():  # type: ignore[no-untyped-def]
    return {"free": 1}


async def _unannotated_text():  # type: ignore[no-untyped-def]
    return ["free"]


async def _number() -> int:
    return 7


async def _listing() -> list[Hit]:
    return [Hit(title="a", when=date(2026, 11, 21))]


async def _whatever() -> Any:
    return None


async def _tuple_and_set() -> tuple[int, frozenset[str]]:
    return (1, frozenset({"a"}))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_model, {"hits": [{"title": "a", "when": "2026-11-21"}], "total": 1}),
        (_model_as_dict, {"hits": [], "total": 3}),
        (_pair, {"left": 1, "right": 2}),
        (_point, {"x": 1.5, "y": 2}),
        (_tree, {"name": "root", "children": [{"name": "leaf", "children": []}]}),
        (_mapping, {"a": [1]}),
        (_either, {"left": 1, "right": 2}),
        (_text, {"text": "hello"}),
        (_nothing, {"result": None}),
        (_unannotated, {"free": 1}),
        (_unannotated_text, {"text": '["free"]'}),
        (_number, {"result": 7}),
        (_listing, {"result": [{"title": "a", "when": "2026-11-21"}]}),
        (_whatever, {"result": None}),
        (_tuple_and_set, {"result": [1, ["a"]]}),
    ],
)
def test_output_is_an_object_that_fits_its_schema(
    make: Make, context: ToolContext, function: Callable[..., Any], expected: Any
) -> None:
    made = make(function)
    schema = made.definition.output_schema

    output = asyncio.run(made.call({}, context))

    assert output == expected
    assert schema is not None
    assert schema["type"] == "object"
    check_schema(schema, "output")
    assert violations(schema, output) == []


async def _unannotated_nothing():  # type: ignore[no-untyped-def]
    return None


@pytest.mark.parametrize("function", [_nothing, _unannotated_nothing])
def test_a_tool_that_returns_nothing_yields_null(
    make: Make, context: ToolContext, function: Callable[..., Any]
) -> None:
    made = make(function)
    assert asyncio.run(made.call({}, context)) == {"result": None}
    assert violations(made.definition.output_schema or {}, {"result": None}) == []


async def _unannotated_fields():  # type: ignore[no-untyped-def]
    return {"a": {"b": 1}}


def test_fields_of_a_tool_without_a_return_annotation_can_be_referred_to(make: Make) -> None:
    # Pins: each of them was refused as `field_not_found`.
    made = make(_unannotated_fields).definition
    calls = [{"tool_name": made.name}, {"tool_name": "take", "arguments": {"b": "$0.output.a.b"}}]
    tools = {made.name: made, "take": ToolDefinition(name="take")}
    assert validate_plan(parse_plan({"calls": calls}), tools, max_steps=2) == []


def test_text_schema_is_the_common_one(make: Make) -> None:
    assert make(_text).definition.output_schema == TEXT_OUTPUT_SCHEMA


async def _not_a_number() -> dict[str, float]:
    return {"a": float("nan")}


async def _infinite() -> float:
    return float("inf")


async def _free_not_a_number() -> Any:
    return {"a": [float("nan")]}


async def _free_infinite():  # type: ignore[no-untyped-def]
    return {"a": {"b": float("-inf")}}


@dataclasses.dataclass
class Loose:
    x: Any
    by_key: dict[Any, Any] = dataclasses.field(default_factory=dict)


async def _loose_not_a_number() -> Loose:
    return Loose(float("nan"))


async def _colliding_keys() -> dict[Any, Any]:
    return {"a": {1: "one", "1": "text"}}


async def _free_colliding_keys() -> Any:
    return [{None: 1, "None": 2}]


async def _loose_colliding_keys() -> Loose:
    return Loose(1, {Colour.RED: 1, "red": 2})


async def _bytes() -> dict[str, Any]:
    return {"raw": b"\xff\xfe"}


async def _readable_bytes() -> Any:
    return {"raw": [b"text"]}


async def _surrogate() -> str:
    return "\ud800"


async def _object() -> dict[str, Any]:
    return {"it": object()}


async def _cycle() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    return loop


async def _deep() -> Any:
    value: Any = 1
    for _ in range(150):
        value = [value]
    return value


async def _list_instead() -> Pair:
    return [1]  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_not_a_number, "nan, which JSON cannot express"),
        (_infinite, "inf, which JSON cannot express"),
        (_free_not_a_number, "nan, which JSON cannot express"),
        (_free_infinite, "-inf, which JSON cannot express"),
        (_loose_not_a_number, "nan, which JSON cannot express"),
        (_colliding_keys, r"keys that are the same text in JSON \(1, '1'\)"),
        (_free_colliding_keys, "keys that are the same text"),
        (_loose_colliding_keys, "keys that are the same text"),
        (_bytes, "no JSON: .*; an output is JSON, so return text, or an Artifact of the bytes"),
        (_readable_bytes, "returned bytes"),
        (_surrogate, "(no valid Unicode|no JSON)"),
        (_object, "no JSON"),
        (_cycle, "no JSON"),
        (_deep, "nested more than"),
        (_list_instead, "promises a JSON object"),
    ],
)
def test_output_that_is_no_json_is_refused(
    make: Make, context: ToolContext, function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(InvalidOutput, match=words):
        output_text("it", asyncio.run(make(function).call({}, context)))


def test_keys_that_are_no_text_become_it(make: Make, context: ToolContext) -> None:
    async def numbered() -> dict[int, Any]:
        return {1: "one", 2: {3: {1.5, 2.5}}}

    output = asyncio.run(make(numbered).call({}, context))

    assert output["1"] == "one"
    assert sorted(output["2"]["3"]) == [1.5, 2.5]


def test_output_schema_can_be_replaced(make: Make, context: ToolContext) -> None:
    schema = {"type": "object", "required": ["a"]}

    @tool(output_schema=schema)
    async def free() -> Any:
        return {"a": 1}

    made = make(free)

    assert made.definition.output_schema == schema
    assert asyncio.run(made.call({}, context)) == {"a": 1}


def test_suspension_passes_with_its_output_as_json(make: Make, context: ToolContext) -> None:
    @tool
    async def later() -> Pair | Suspended:
        return Suspended(timedelta(seconds=3), Pair(left=1, right=2))

    made = make(later)

    assert made.definition.output_schema is not None
    assert set(made.definition.output_schema["properties"]) == {"left", "right"}
    assert asyncio.run(made.call({}, context)) == Suspended(timedelta(seconds=3), {"left": 1, "right": 2})


def _no_annotation(query) -> str:  # type: ignore[no-untyped-def]
    return ""


def _star(*parts: str) -> str:
    return ""


def _keywords(**parts: str) -> str:
    return ""


def _opaque(handle: threading.Event) -> str:
    return ""


def _opaque_result() -> threading.Event:
    raise AssertionError


def _field_default(limit: int = Field(default=5, ge=1)) -> str:
    return ""


def _unresolvable(thing: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_no_annotation, "'query' has no type annotation"),
        (_star, "cannot be passed by name"),
        (_keywords, "cannot be passed by name"),
        (_opaque, "parameters have no JSON Schema"),
        (_opaque_result, "return annotation has no JSON Schema"),
        (_field_default, "Annotated"),
        (_unresolvable, "cannot be resolved"),
    ],
)
def test_function_without_a_schema_is_named_with_its_place(
    make: Make, function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(Misconfigured, match=words) as caught:
        make(function)

    assert f"test_function_tool.py:{function.__code__.co_firstlineno}" in caught.value.message
    assert function.__name__ in caught.value.message


def test_wrong_option_is_named_with_its_place() -> None:
    with pytest.raises(Misconfigured, match=r"test_function_tool\.py.*effect: Input should be 'pure'"):

        @tool(effect="writes")
        def odd() -> str:
            return ""


def test_an_option_that_there_is_not_is_told_with_those_that_there_are() -> None:
    with pytest.raises(Misconfigured, match=r"retry: Extra inputs .*; the options are name, .*retries.*version"):

        @tool(retry=3)  # type: ignore[call-overload]
        async def fetch() -> str:
            return ""


def test_a_tool_that_is_to_return_bytes_is_refused(make: Make) -> None:
    async def raw() -> bytes:
        return b""

    with pytest.raises(Misconfigured, match="its return annotation is bytes; an output is JSON"):
        make(raw)

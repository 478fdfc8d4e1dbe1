"""From a Python signature to JSON Schema 2020-12 and back: what goes into a tool function, what comes out.

Input: one property per parameter, nothing extra; parameters annotated `ToolContext` or `ToolServices`, or with the
type of a resource, are injected and appear in no schema. Output: an object type as it is; text wrapped as
`{"text": …}` (docs/decisions.md, D26); any other type, `None` too, wrapped as `{"result": …}`. A function without a
return annotation does the same by what it returns, and its schema is open: any field can be referred to.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from planq.shared.agentic.results.artifacts import BYTES_SCHEMA, provenance, tool_response_schema
from planq.shared.agentic.tools.contract import BytesArtifact, NotHappened, RichOutput, Suspended, ToolContext
from planq.shared.agentic.tools.definition import TEXT_OUTPUT_SCHEMA
from planq.shared.platform.errors import InvalidOutput, Misconfigured
from planq.shared.platform.values.encoding import not_a_number
from planq.worker.tools.response import Artifact, ToolResponse
from planq.worker.tools.services import ToolServices

INJECTED = frozenset({ToolContext, ToolServices})
"""Annotations of injected parameters; resources' types are injected, too."""

Wrap = Literal["nothing", "text", "result", "texts", "artifact"]


class _SchemaGenerator(GenerateJsonSchema):
    """JSON Schema without generated titles, which tell a model nothing that the property name does not."""

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Say nothing: a default that is no JSON is left out of the schema, and that is all."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Say no for every field; a title that the author wrote is kept by pydantic all the same."""
        return False


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments of a function: schema, model, parameters' `names` by its fields, and `injected` types."""

    schema: dict[str, Any]
    model: type[BaseModel]
    names: Mapping[str, str]
    injected: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a function: its schema, and the way from a Python value to the JSON object that is stored."""

    schema: dict[str, Any]
    adapter: TypeAdapter[Any]
    wrap: Wrap

    def dump(self, value: Any, tool_name: str, context: ToolContext) -> dict[str, Any] | RichOutput:
        """Return a result as the stored JSON object; raise `InvalidOutput` if JSON would lose a part of it."""
        if isinstance(value, Artifact):
            made = self.dump_artifact(value, tool_name, context)
            if not isinstance(made, BytesArtifact):
                return made
            artifact = {"media_type": made.media_type, "bytes": len(made.data)}
            output = {"artifact_id": made.artifact_id, "artifact": artifact, "_metadata": made.metadata}
            return RichOutput(output, [made])
        if isinstance(value, ToolResponse):
            return self._dump_response(value, tool_name, context)
        plain = self._as_json(value, tool_name)
        if self.wrap == "texts" and plain is None:
            return {"result": None}
        if self.wrap == "text" or (self.wrap == "texts" and not isinstance(plain, dict)):
            return {"text": _as_text(plain)}
        if self.wrap == "result":
            return {"result": plain}
        if not isinstance(plain, dict) or self.wrap == "artifact":
            promised = "an Artifact" if self.wrap == "artifact" else "a JSON object"
            raise InvalidOutput(
                f"{tool_name} returned a {type(value).__name__}; its output schema promises {promised}"
            )
        return plain

    def _dump_response(
        self, said: ToolResponse[Any], tool_name: str, context: ToolContext
    ) -> dict[str, Any] | RichOutput:
        if isinstance(said.structured, ToolResponse):
            raise InvalidOutput(f"{tool_name} returned a ToolResponse as the structured part of another one")
        if said.structured is None and said.content is not None and self.wrap in ("text", "texts"):
            accompanied = RichOutput({"text": said.content})
        else:
            output = self.dump(said.structured, tool_name, context)
            accompanied = output if isinstance(output, RichOutput) else RichOutput(output)
            accompanied = replace(accompanied, content=said.content)
        untyped = replace(self, adapter=TypeAdapter(Any))
        made = [untyped.dump_artifact(one, tool_name, context) for one in said.artifacts]
        accompanied = replace(accompanied, artifacts=[*accompanied.artifacts, *made], cost_usd=said.cost_usd)
        is_alone = not accompanied.artifacts and not accompanied.content and said.cost_usd is None
        return accompanied.output if is_alone else accompanied

    def dump_artifact(
        self, made: Artifact[Any], tool_name: str, context: ToolContext
    ) -> dict[str, Any] | BytesArtifact:
        """Return an artifact, which the call of `context` has made, in its wrapper; raises as `dump` does."""
        when = made.executed_at or datetime.now(UTC)
        metadata = provenance(context, when, skill_id=made.skill_id, skill_name=made.skill_name)
        if (file := made.as_file()) is not None:
            return BytesArtifact(made.id, *file, metadata)
        body = self._as_json(made.body, tool_name)
        return {"artifact_id": made.id, "artifact": body, "_metadata": metadata}

    def _as_json(self, value: Any, tool_name: str) -> Any:
        try:
            plain = self.adapter.dump_python(value, mode="json", by_alias=True, warnings="none")
            try:
                is_same = bool(value == plain)  # then it surely lost nothing
            except Exception:  # a type of the author's may compare as it likes
                is_same = False
            if not is_same:
                returned = self.adapter.dump_python(value, mode="python", by_alias=True, warnings="none")
                _check_kept(returned, plain, tool_name)
        except (ValueError, TypeError, RecursionError) as error:
            reason = f"{error}; {_NO_BYTES}" if "invalid utf-8" in str(error) else str(error)
            raise InvalidOutput(f"{tool_name} returned a {type(value).__name__} that is no JSON: {reason}") from error
        return plain


def read_inputs(function: Callable[..., Any], place: str, resources: Container[Any] = ()) -> Inputs:
    """Return the inputs of `function`; `resources` are injected types. Raise `Misconfigured` otherwise."""
    hints = _hints(function, place)
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    injected: dict[str, Any] = {}
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        annotation = hints.get(parameter.name, inspect.Parameter.empty)
        if _is_injected(annotation, resources):
            injected[parameter.name] = annotation
            continue
        _check_parameter(parameter, annotation, place)
        # Own field names with the parameter's name as alias: a parameter may be called `json`, `copy` or `model_x`.
        field = f"argument_{position}"
        names[field] = parameter.name
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[field] = (annotation, Field(default=default, alias=parameter.name))
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = _object_at_top(model.model_json_schema(schema_generator=_SchemaGenerator, mode="validation"))
    except (PydanticUserError, TypeError) as error:
        raise Misconfigured(
            f"{place}: its parameters have no JSON Schema: {error}; what no argument can be comes from a "
            "@resource that yields this type, in a module of PLANQ_TOOLS"
        ) from error
    schema.pop("title", None)
    return Inputs(schema, model, names, injected)


def read_output(function: Callable[..., Any], place: str, override: Mapping[str, Any] | None = None) -> Output:
    """Return the output of `function` by its return annotation; an `override` schema replaces the derived one."""
    hints = _hints(function, place)
    annotation = _without_suspended(hints.get("return", None))
    if override is not None:
        return Output(dict(override), TypeAdapter(Any), "nothing")
    if annotation is ToolResponse or "return" not in hints:  # unknown: an object stays one, all else is its text
        return Output({"type": "object", "additionalProperties": True}, TypeAdapter(Any), "texts")
    if typing.get_origin(annotation) is ToolResponse:
        (annotation,) = typing.get_args(annotation)
    return _read_annotation(annotation, place)


def _read_annotation(annotation: Any, place: str) -> Output:
    if annotation is Artifact or typing.get_origin(annotation) is Artifact:
        (body,) = typing.get_args(annotation) or (Any,)
        if body is bytes:
            return Output(tool_response_schema(BYTES_SCHEMA), TypeAdapter(Any), "artifact")
        adapter, schema = _described(body, place)
        return Output(tool_response_schema(schema), adapter, "artifact")
    for one in _members(annotation):
        for kind in (Artifact, ToolResponse):
            if one is kind or typing.get_origin(one) is kind:
                named = "an Artifact" if kind is Artifact else "a ToolResponse"
                raise Misconfigured(
                    f"{place}: its return annotation has {named} and something else; expected it alone"
                )
    if annotation is str:
        return Output(dict(TEXT_OUTPUT_SCHEMA), TypeAdapter(Any), "text")
    adapter, schema = _described(annotation, place)
    if schema.get("type") == "object":
        return Output(schema, adapter, "nothing")
    wrapped: dict[str, Any] = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    if "$defs" in schema:
        wrapped["$defs"] = schema.pop("$defs")
    return Output(wrapped, adapter, "result")


def _described(annotation: Any, place: str) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    if annotation in (bytes, bytearray, memoryview):
        raise Misconfigured(f"{place}: its return annotation is {annotation.__name__}; {_NO_BYTES}")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        mode: JsonSchemaMode = "serialization"
        return adapter, _object_at_top(adapter.json_schema(schema_generator=_SchemaGenerator, mode=mode))
    except (PydanticUserError, TypeError) as error:
        raise Misconfigured(f"{place}: its return annotation has no JSON Schema: {error}") from error


@dataclass(frozen=True, slots=True)
class FindOutFunction:
    """A `find_out` function: which arguments of its tool it takes, and what is injected; `name` is for messages."""

    function: Callable[..., Any]
    names: frozenset[str]
    injected: Mapping[str, Any]
    is_async: bool

    def bind(self, values: Mapping[str, Any], offered: Mapping[Any, Any]) -> dict[str, Any]:
        """Return its keyword arguments out of those of the tool's function, and what is `offered` by its type."""
        taken = {name: values[name] for name in self.names}
        return taken | {name: offered[kind] for name, kind in self.injected.items()}


def read_question(
    function: Callable[..., Any], inputs: Inputs, place: str, resources: Container[Any] = ()
) -> FindOutFunction:
    """Return a `find_out` function of a tool; raise `Misconfigured` for foreign parameters or no `NotHappened`."""
    if not inspect.isfunction(function):
        raise Misconfigured(f"{place}: expected a function, found {function!r}")
    hints = _hints(function, place)
    known = frozenset(inputs.names.values())
    names: set[str] = set()
    injected: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name)
        _check_kind(parameter, place)
        if _is_injected(annotation, resources):
            injected[parameter.name] = annotation
        elif parameter.name in known:
            names.add(parameter.name)
        else:
            raise Misconfigured(
                f"{place}: parameter {parameter.name!r} is none of the tool's ({', '.join(sorted(known))}), and not "
                "annotated ToolContext, ToolServices or the type of a resource"
            )
    if NotHappened not in _members(hints.get("return")):
        raise Misconfigured(
            f"{place}: expected a return annotation with NotHappened and the tool's output, such as "
            "`-> Receipt | NotHappened`; without it no call could be found not to have happened"
        )
    return FindOutFunction(function, frozenset(names), injected, inspect.iscoroutinefunction(function))


def _is_injected(annotation: Any, resources: Container[Any]) -> bool:
    return (isinstance(annotation, type) and annotation in INJECTED) or annotation in resources


def _hints(function: Callable[..., Any], place: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise Misconfigured(
            f"{place}: an annotation cannot be resolved ({error}); import its type at module level, "
            "not under TYPE_CHECKING"
        ) from error


def _check_parameter(parameter: inspect.Parameter, annotation: Any, place: str) -> None:
    _check_kind(parameter, place)
    if annotation is inspect.Parameter.empty:
        raise Misconfigured(f"{place}: parameter {parameter.name!r} has no type annotation; its schema comes from it")
    if isinstance(parameter.default, FieldInfo):
        raise Misconfigured(
            f"{place}: parameter {parameter.name!r} has a Field as its default; "
            "write `name: Annotated[int, Field(ge=1)] = 5`"
        )


def _check_kind(parameter: inspect.Parameter, place: str) -> None:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise Misconfigured(
            f"{place}: parameter {str(parameter)!r} cannot be passed by name; a tool has named ones only"
        )


def _members(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _without_suspended(annotation: Any) -> Any:
    """Take `Suspended` out of a union: it says when the output comes, not what it is."""
    members = tuple(member for member in _members(annotation) if member is not Suspended)
    return functools.reduce(operator.or_, members) if members else None


def _object_at_top(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an equal schema that says `type: object` itself where pydantic says it behind a `$ref` or a union."""
    schema = dict(schema)
    definitions = schema.get("$defs", {})
    reference = schema.get("$ref")
    if reference is not None:
        del schema["$ref"]
        schema = {**_definition(reference, definitions), **schema}
    branches = schema.get("anyOf") or schema.get("oneOf")
    if "type" not in schema and branches:
        resolved = [_definition(branch["$ref"], definitions) if "$ref" in branch else branch for branch in branches]
        if all(branch.get("type") == "object" for branch in resolved):
            schema["type"] = "object"
    return schema


def _definition(reference: str, definitions: Mapping[str, Any]) -> dict[str, Any]:
    return dict(definitions[reference.removeprefix("#/$defs/")])


def _as_text(plain: Any) -> str:
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


_NO_BYTES = "an output is JSON, so return text, or an Artifact of the bytes"


def _check_kept(returned: Any, plain: Any, tool_name: str) -> None:
    """Raise `InvalidOutput` where the JSON form of what was returned says less: pydantic keeps silent about that."""
    stack = [(returned, plain)]
    while stack:
        said, kept = stack.pop()
        if isinstance(said, (bytes, bytearray, memoryview)):  # pydantic takes them for UTF-8
            raise InvalidOutput(f"{tool_name} returned bytes; {_NO_BYTES}")
        if isinstance(said, float) and not math.isfinite(said) and not isinstance(kept, str):
            raise not_a_number(tool_name, said)
        if isinstance(said, Mapping) and isinstance(kept, dict):
            if len(kept) < len(said):
                raise InvalidOutput(
                    f"{tool_name} returned an object with keys that are the same text in JSON "
                    f"({', '.join(repr(key) for key in list(said)[:5])}); only one of them would be kept"
                )
            stack.extend(zip(said.values(), kept.values(), strict=False))
        elif isinstance(said, (list, tuple, set, frozenset)) and isinstance(kept, list):
            stack.extend(zip(said, kept, strict=False))

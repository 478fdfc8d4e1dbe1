"""An agent as a document: instructions, thinking aids or an output schema, tools, model, output mode.

The document is flat: JSON Schema next to the agent's settings.

    {"type": "object", "name": "invoice-agent", "description": "Extract invoice data.", "structured_output": true,
     "properties": {"total": {"type": "number"}}, "required": ["total"],
     "tools": [{"name": "search", "description": "Query knowledge base"}], "chained_tool": "save_moments"}

A table row `{"name", "content": "You …", "json_schema": {…}}` means the same. Unknown keys are stored as written.
`read_agent` is tolerant, for stored documents; `parse_agent` reports every defect, for documents to save.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
)

from planq.shared.agentic.agents.checks import flat_row, savable_defects
from planq.shared.agentic.models.call_settings import AgentCallSettings
from planq.shared.agentic.models.ending import OnIncomplete
from planq.shared.agentic.models.names import OFFLINE
from planq.shared.agentic.rounds.block import LoopBlock, parse_block
from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.agentic.source import DocumentSource, read_source
from planq.shared.agentic.tools.names import NameIndex
from planq.shared.kernel.states import StrategyName
from planq.shared.platform.errors import InvalidRequest
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import excerpt, sentence_list

OutputMode = Literal["text", "object"]

MAX_OUTPUT_TOKENS = 1_000_000

_MOST_LISTED = 10
"""Maximum number of defects in the message; the details have all."""

_OPEN = ConfigDict(frozen=True, strict=True, extra="allow")
_OF_THE_SCHEMA = ("$defs", "definitions", "additionalProperties")
"""Keys, in addition to `properties` and `required`, that belong to the schema of a structured answer."""

_Positive = Annotated[int, Field(gt=0)]


class ToolUse(BaseModel):
    """A tool that the agent may use; `description` is a note about it for this agent alone."""

    model_config = _OPEN

    name: Annotated[str, Field(min_length=1, max_length=200)]
    server: str | None = None
    description: str | None = None

    @property
    def spellings(self) -> Sequence[str]:
        """Return the names under which it may be registered, the likelier one first."""
        return [self.name] if not self.server else [self.name, f"{self.server}_{self.name}"]


class AgentLimits(BaseModel):
    """Limits of one run of the agent; None is no limit."""

    model_config = _OPEN

    request_limit: _Positive | None = None
    tool_calls_limit: _Positive | None = None
    input_tokens_limit: _Positive | None = None
    output_tokens_limit: _Positive | None = None
    total_tokens_limit: _Positive | None = None


class Action(BaseModel):
    """A prepared request to the agent: its `prompt`, and the schema that the input data (`with`) must satisfy."""

    model_config = _OPEN

    description: str = ""
    prompt: str = ""
    input_schema: dict[str, Any] | None = Field(default=None, validation_alias=AliasChoices("input_schema", "input"))


@dataclass(frozen=True, slots=True)
class Options:
    """How the agent's model is called; `temperature` None leaves it to the provider."""

    model: str
    temperature: float | None
    max_tokens: int | None


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


class AgentDocument(BaseModel):
    """One version of an agent."""

    model_config = _OPEN

    type: Literal["object"] = "object"
    kind: str = "agent"
    name: str = ""
    version: Annotated[str, BeforeValidator(_text_of_number)] = "1.0.0"
    description: str = ""
    short_description: str | None = None
    system_prompt_extension: Annotated[str | None, Field(validation_alias="system_prompt")] = None
    properties: dict[str, Any] = Field(default_factory=dict)
    required: list[str] = Field(default_factory=list)
    structured_output: bool = False
    chained_tool: str | None = None
    tools: list[ToolUse] = Field(default_factory=list)
    skills: list[str] = Field(default_factory=list)
    actions: dict[str, Action] = Field(default_factory=dict)
    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Field(gt=0, le=MAX_OUTPUT_TOKENS)] | None = None
    model_settings: AgentCallSettings | None = None
    on_incomplete: OnIncomplete | None = None
    max_iterations: _Positive | None = None
    limits: AgentLimits | None = None
    routing_enabled: bool = True
    routing_max_turns: _Positive = 20
    observation_mode: str = "sync"
    strategy: StrategyName | None = None
    loop: dict[str, Any] | None = None

    _source: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, source: Mapping[str, Any]) -> Self:
        document = cls.model_validate(_flattened(source))
        document._source = deepcopy(dict(source))
        return document

    def to_json(self) -> dict[str, Any]:
        """Return the document as written, with unknown keys and in its order."""
        return deepcopy(self._source)

    @property
    def summary(self) -> str:
        """Return a short description, for lists and for agents that choose one."""
        return self.short_description or self.description[:200]

    def output_mode(self) -> OutputMode:
        """Return `object` if answers must satisfy a schema."""
        return "object" if self.structured_output and self.properties else "text"

    def loop_block(self) -> LoopBlock | None:
        """Return the loop block, None without one; raises `InvalidRequest` for a broken block."""
        return None if self.loop is None else parse_block(self.loop, f"the loop block of agent {self.name!r}")

    def answer_schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of an answer; None in conversational mode."""
        if self.output_mode() == "text":
            return None
        schema: dict[str, Any] = {"type": "object", "properties": deepcopy(self.properties)}
        if self.required:
            schema["required"] = list(self.required)
        extra = self.model_extra or {}
        return schema | {key: deepcopy(extra[key]) for key in _OF_THE_SCHEMA if key in extra}

    def system_prompt(self, names: Mapping[str, str] | None = None) -> str:
        """Return the instructions; `names` maps listed tools to the names that the model uses."""
        known = names or {}
        is_guiding = not self.structured_output
        return system_prompt(
            [self.description, self.system_prompt_extension or ""],
            [(known.get(tool.name, tool.name), tool.description) for tool in self.tools if tool.description],
            self.properties if is_guiding else {},
            self.required,
            (self.model_extra or {}).get("$defs"),
        )

    def options(
        self,
        overrides: Mapping[str, Any] | None = None,
        *,
        model: str,
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> Options:
        """Return how to call the model: `overrides` (also None) win over the document, that over defaults."""
        said = overrides or {}
        chosen = said.get("model") or self.model or model
        own = temperature if self.temperature is None else self.temperature
        return Options(
            model=full_model_name(chosen),
            temperature=said.get("temperature", own),
            max_tokens=said.get("max_tokens") or self.max_tokens or max_tokens,
        )

    def select_tools(self, known: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the `known` tools that the agent may use, in its order, and the listed ones that are unknown."""
        found = self.tool_names(known)
        return list(dict.fromkeys(found.values())), [tool.name for tool in self.tools if tool.name not in found]

    def tool_names(self, known: Sequence[str]) -> dict[str, str]:
        """Map each listed tool to its name among `known`; unknown ones are left out."""
        index = NameIndex(known)
        found: dict[str, str] = {}
        for tool in self.tools:
            names = [one for spelling in tool.spellings if len(one := index.candidates(spelling)) == 1]
            if names:
                found[tool.name] = names[0][0]
        return found


def full_model_name(name: str) -> str:
    """Return a model's full name; without a provider it is OpenAI's."""
    return name if ":" in name or name == OFFLINE else f"openai:{name}"


def read_agent(source: str | bytes | Mapping[str, Any]) -> AgentDocument:
    """Read a document that may be incomplete; raises `InvalidRequest` like `parse_agent`."""
    document, found = _read(read_source(source))
    if document is None:
        raise _refusal(found)
    return document


def parse_agent(source: str | bytes | Mapping[str, Any]) -> AgentDocument:
    """Read a document to save, from YAML, JSON or a decoded object.

    Raises `InvalidRequest` whose `details["errors"]` has every defect as `{path, line, message}`; `line` may be None.
    """
    marked = read_source(source)
    document, found = _read(marked)
    if isinstance(marked.value, Mapping) and not marked.defects:
        found += savable_defects(marked.value, marked)
    if document is None or found:
        raise _refusal(found)
    return document


def _read(marked: DocumentSource) -> tuple[AgentDocument | None, list[Defect]]:
    if marked.defects:
        return None, list(marked.defects)
    if not isinstance(marked.value, Mapping):
        found = "nothing" if marked.value is None else excerpt(marked.value)
        return None, [marked.defect((), f"expected an object with the fields of an agent, found {found}")]
    try:
        return AgentDocument.of(marked.value), []
    except ValidationError as error:
        return None, [_defect(marked, item) for item in error.errors(include_url=False, include_context=False)]


def _defect(marked: DocumentSource, item: Mapping[str, Any]) -> Defect:
    found = "" if item["type"] == "missing" else f"; found {excerpt(item['input'])}"
    path = tuple(item["loc"])
    actions = marked.value.get("actions")
    if path[0] == "actions" and len(path) > 1 and isinstance(actions, list):
        number = next(number for number, one in enumerate(actions) if _has_id(one) and one["id"] == path[1])
        path = ("actions", number, *path[2:])
    return marked.defect(path, f"{item['msg']}{found}")


def _refusal(defects: Sequence[Defect]) -> InvalidRequest:
    ordered = sorted(defects, key=lambda defect: (defect.line or 0, defect.pointer))
    listed = sentence_list([defect.render() for defect in ordered], _MOST_LISTED)
    return InvalidRequest(
        f"the agent's document is not valid: {listed}", errors=[one.of_document() for one in ordered]
    )


def _flattened(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields in their one form: settings at the top, tools and actions as objects, no nulls."""
    fields = dict(flat_row(source))
    nested = fields.pop("json_schema_extra", None)
    if isinstance(nested, Mapping):
        fields |= nested
    fields = {key: value for key, value in fields.items() if value is not None}
    fields.pop("title", None)
    resources = fields.pop("resources", ())
    tools = fields.get("tools", [])
    if isinstance(tools, list) and isinstance(resources, (list, tuple)):
        fields["tools"] = _with_resources(
            [{"name": one} if isinstance(one, str) else one for one in tools], resources
        )
    actions = fields.get("actions")
    if isinstance(actions, list):  # `checks` reports those without an id
        fields["actions"] = {one["id"]: one for one in actions if _has_id(one)}
    return fields


def _has_id(action: Any) -> bool:
    return isinstance(action, Mapping) and isinstance(action.get("id"), str)


def _with_resources(tools: list[Any], resources: Sequence[Any]) -> list[Any]:
    """Add the resources (an older word for tools) that are not listed as tools."""
    names = {tool.get("name") for tool in tools if isinstance(tool, Mapping)}
    for resource in resources:
        name = resource.get("name") if isinstance(resource, Mapping) else resource
        folded = name.lower().replace(" ", "_") if isinstance(name, str) else ""
        if folded and folded not in names:
            names.add(folded)
            described = resource.get("description") if isinstance(resource, Mapping) else None
            tools.append({"name": folded, "description": described})
    return tools


_GUIDANCE = (
    "Let these fields guide what you look for and keep in mind. They are for your reasoning only.",
    "Answer in plain conversational text. Do NOT output field names, YAML or JSON.",
)


def system_prompt(
    texts: Sequence[str],
    notes: Sequence[tuple[str, str | None]],
    properties: Mapping[str, Any],
    required: Sequence[str] = (),
    definitions: Any = None,
) -> str:
    """Join the parts that are not blank; `$ref`s of the thinking aids `properties` lead to `definitions`."""
    parts = [text.strip() for text in texts if text.strip()]
    if notes:
        parts.append("\n".join(["## Tool Notes", *(f"- **{name}**: {note}" for name, note in notes)]))
    if properties:
        known = definitions if isinstance(definitions, Mapping) else {}
        outline = _Outline(known).lines(properties, required)
        head, rule = _GUIDANCE
        parts.append("\n".join(["## Thinking Structure", "", head, "", "```yaml", *outline, "```", "", rule]))
    return "\n\n".join(parts)


class _Outline:
    """Writes properties as an indented list of names, kinds and descriptions."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def lines(self, properties: Mapping[str, Any], required: Sequence[Any], depth: int = 0) -> Iterator[str]:
        for name, schema in properties.items():
            yield from self._property(name, self._resolved(schema), name in required, depth)

    def _property(self, name: str, schema: Mapping[str, Any], is_required: bool, depth: int) -> Iterator[str]:
        indent = "  " * depth
        kind = schema.get("type", "any")
        described = schema.get("description")
        if kind == "array":
            items = self._resolved(schema.get("items"))
            yield f"{indent}{name}: [{_kind(items)}]{_mark(is_required)}"
            inner, within = items, depth + 2
        elif kind == "object":
            yield f"{indent}{name}:{_mark(is_required)}"
            inner, within = schema, depth + 1
        else:
            yield f"{indent}{name}: {_kind(schema)}{_mark(is_required)}"
            inner, within = {}, depth
        if described:
            yield f"{indent}  # {' '.join(str(described).split())}"
        nested = inner.get("properties")
        if isinstance(nested, Mapping) and nested and within < MAX_DEPTH // 4:
            if kind == "array":
                yield f"{indent}  # each item:"
            yield from self.lines(nested, inner.get("required") or (), within)

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        """Return a schema, its reference into the definitions followed once."""
        if not isinstance(schema, Mapping):
            return {}
        target = schema.get("$ref")
        if isinstance(target, str) and "$defs/" in target:
            found = self._definitions.get(target.rpartition("/")[2])
            if isinstance(found, Mapping):
                return {**found, **{key: value for key, value in schema.items() if key != "$ref"}}
        return schema


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "any")
    kinds = " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
    choices = schema.get("enum")
    return f"{kinds} (one of: {', '.join(map(str, choices))})" if isinstance(choices, list) and choices else kinds


def _mark(is_required: bool) -> str:
    return " (required)" if is_required else ""

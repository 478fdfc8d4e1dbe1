"""Warnings, no errors, for a document may be stored before its skills and workers exist."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from planq.shared.agentic.agents.checks import flat_row
from planq.shared.agentic.agents.document import AgentDocument
from planq.shared.agentic.rounds.evaluate import rule_defects
from planq.shared.agentic.schema.reach import schemas_in
from planq.shared.agentic.source import DocumentPath
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.names import NameIndex
from planq.shared.platform.errors import capped
from planq.shared.platform.values.pointers import path_pointer

CHAINED_TOOL_MISSING: Final = "chained_tool_missing"
AGENT_TOOLS_MISSING: Final = "agent_tools_missing"

JOB_WARNINGS: Final = (AGENT_TOOLS_MISSING, CHAINED_TOOL_MISSING)
"""Kinds of events that a job's document shows as warnings."""

_SUB_AGENTS = ("agents", "sub_agents")
"""Keys under which documents name other agents. They have no meaning for planq, but an unknown name is a mistake."""


@dataclass(frozen=True, slots=True)
class DocumentWarning:
    """A part of an agent's document that has no meaning now, or cannot work."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    path: Annotated[str, Field(description="A JSON pointer into the document.")]
    code: Literal[
        "tool_missing",
        "skill_missing",
        "chained_tool_missing",
        "chained_tool_unused",
        "agent_missing",
        "agent_empty",
        "planner_missing",
        "arguments_invalid",
        "field_unknown",
        "value_unquoted",
    ]
    name: str
    message: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def document_warnings(
    document: AgentDocument,
    *,
    tools: Mapping[str, ToolDefinition],
    skills: Collection[str],
    agents: Collection[str],
    planners: Collection[str] | None = None,
) -> list[DocumentWarning]:
    """Return the names in a document that are unknown, and the parts that can never work.

    `skills` and `agents` are those in use among the named ones (`named_agents`); `planners` None if unknown.
    """
    return [
        *_empty(document),
        *_misspelt(document),
        *_unquoted(document),
        *_tools(document, tools),
        *(
            DocumentWarning(
                f"/skills/{number}", "skill_missing", name, _missing(f"skill {_shown(name)} is not stored")
            )
            for number, name in enumerate(document.skills)
            if name not in skills
        ),
        *_looping(document, tools, skills, planners),
        *_chained(document, tools),
        *(
            DocumentWarning(path, "agent_missing", name, _missing(f"agent {_shown(name)} is not in use"))
            for path, name in _sub_agents(document)
            if name not in agents and name != document.name
        ),
    ]


def named_agents(document: AgentDocument) -> list[str]:
    return [name for _, name in _sub_agents(document)]


def prompt_skills(document: AgentDocument) -> list[str]:
    """Return a list of the skill that a document's loop uses as its prompt, if any."""
    block = document.loop_block()
    prompt = None if block is None else block.prompt
    return [prompt.name] if prompt is not None and prompt.name is not None and prompt.text is None else []


def job_warning(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the warning of a job's document for an event of `JOB_WARNINGS`: `{code, message, details}`."""
    agent = _shown(str(data.get("agent")))
    if kind == CHAINED_TOOL_MISSING:
        message = (
            f"no worker offers {_shown(str(data.get('tool')))}, the chained tool of agent {agent}: it was not called"
        )
        return {"code": kind, "message": f"{message}, and the answer stands", "details": dict(data)}
    listed = ", ".join(_shown(str(name)) for name in data.get("tools") or ())
    message = f"no worker offers {capped(listed, 500)}, listed by agent {agent}: it went on without"
    return {"code": kind, "message": message, "details": dict(data)}


def _tools(document: AgentDocument, known: Collection[str]) -> Iterator[DocumentWarning]:
    _, missing = document.select_tools(list(known))
    written = document.to_json().get("tools")
    count = len(written) if isinstance(written, list) else 0
    for number, tool in enumerate(document.tools):
        if tool.name in missing:
            path = f"/tools/{number}" if number < count else "/resources"
            yield DocumentWarning(
                path, "tool_missing", tool.name, _missing(f"no worker offers a tool {_shown(tool.name)}")
            )


def _empty(document: AgentDocument) -> Iterator[DocumentWarning]:
    given = (document.system_prompt().strip(), document.tools, document.skills, document.actions, document.loop)
    if not any(given):
        message = "it has neither instructions (description) nor tools: it only passes its input on"
        yield DocumentWarning("", "agent_empty", document.name, message)


def _misspelt(document: AgentDocument) -> Iterator[DocumentWarning]:
    """Yield the unknown fields that nearly match a known one, and all unknown limits, which bound nothing."""
    actions = [(("actions", name), action) for name, action in document.actions.items()]
    for place, part in [((), document), (("limits",), document.limits), *actions]:
        known = () if part is None else tuple(type(part).model_fields)
        for name in (part and part.model_extra) or ():
            if name not in _OTHER_FIELDS and (near := difflib.get_close_matches(name[:100], known, 1, _ALIKE)):
                message = f"the field {_shown(name)} has no meaning and is kept as it is; did you mean {near[0]!r}?"
                yield DocumentWarning(path_pointer((*place, name)), "field_unknown", name, message)
            elif part is document.limits:
                message = (
                    f"the limit {_shown(name)} has no meaning and bounds nothing; known ones are {', '.join(known)}"
                )
                yield DocumentWarning(path_pointer((*place, name)), "field_unknown", name, message)


_ALIKE = 0.85
_OTHER_FIELDS = frozenset({"system_prompt", "input", "resources", *_SUB_AGENTS})
"""Known fields with another spelling."""


def _unquoted(document: AgentDocument) -> Iterator[DocumentWarning]:
    """Yield the numbers and booleans in schemas of type string: YAML needs quotes there."""
    for base, schema in _schemas(document):
        for path, contents in schemas_in(schema):
            written = contents.get("type")
            types = written if isinstance(written, list) else [written]
            for keyword in _KEYWORDS_WITH_VALUES if "string" in types else ():
                value = contents.get(keyword)
                values = value if isinstance(value, list) and keyword in ("enum", "examples") else [value]
                found = [json.dumps(one) for one in values if _is_unquoted(one, types)]
                if found:
                    listed = capped(", ".join(found), 200)
                    message = (
                        f"expected texts, because the type is string; found {listed}; put them "
                        "in quotes: YAML reads 1.10, 01234 and true without quotes as numbers and booleans"
                    )
                    place = path_pointer((*base, *path, keyword))
                    yield DocumentWarning(place, "value_unquoted", keyword, message)


_KEYWORDS_WITH_VALUES = ("enum", "const", "default", "examples")


def _is_unquoted(value: Any, types: Collection[Any]) -> bool:
    if isinstance(value, bool):
        return "boolean" not in types
    return isinstance(value, (int, float)) and "number" not in types and "integer" not in types


def _schemas(document: AgentDocument) -> Iterator[tuple[DocumentPath, Mapping[str, Any]]]:
    """Yield the document's checked schemas with their places."""
    written = flat_row(document.to_json())
    if isinstance(written.get("properties"), Mapping):
        yield (), {key: written[key] for key in _OF_THE_ANSWER if key in written}
    actions = written.get("actions")
    by_name = actions.items() if isinstance(actions, Mapping) else ()
    for place, action in enumerate(actions) if isinstance(actions, list) else by_name:
        for key in ("input_schema", "input") if isinstance(action, Mapping) else ():
            if isinstance(action.get(key), Mapping):
                yield ("actions", place, key), action[key]


_OF_THE_ANSWER = ("$schema", "properties", "$defs", "definitions", "additionalProperties")


def _looping(
    document: AgentDocument,
    known: Mapping[str, ToolDefinition],
    skills: Collection[str],
    planners: Collection[str] | None,
) -> Iterator[DocumentWarning]:
    block = document.loop_block()
    index = NameIndex(known)
    for path, message in rule_defects(block, known) if block is not None else ():
        yield DocumentWarning(path_pointer(("loop", *path)), "arguments_invalid", str(path[-1]), message)
    if block is not None and block.planner is not None and planners is not None and block.planner not in planners:
        problem = _missing(f"no worker has a planner {_shown(block.planner)}")
        yield DocumentWarning("/loop/planner", "planner_missing", block.planner, problem)
    for path, name in block.called() if block is not None else ():
        if len(index.candidates(name)) != 1:
            place = path_pointer(("loop", *path))
            yield DocumentWarning(place, "tool_missing", name, _missing(f"no worker offers a tool {_shown(name)}"))
    for name in prompt_skills(document):
        if name not in skills:
            problem = f"skill {_shown(name)} is not stored"
            yield DocumentWarning("/loop/prompt", "skill_missing", name, _missing(problem))


def _chained(document: AgentDocument, known: Collection[str]) -> Iterator[DocumentWarning]:
    name = document.chained_tool
    if not name:
        return
    if not document.structured_output:
        message = (
            "a chained tool is called with a structured answer only: add structured_output: true, or take it out"
        )
        yield DocumentWarning("/chained_tool", "chained_tool_unused", name, message)
    if len(NameIndex(known).candidates(name)) != 1:
        message = _missing(f"no worker offers a tool {_shown(name)}")
        yield DocumentWarning("/chained_tool", CHAINED_TOOL_MISSING, name, message)


def _sub_agents(document: AgentDocument) -> Iterator[tuple[str, str]]:
    for key in _SUB_AGENTS:
        listed = (document.model_extra or {}).get(key)
        for number, one in enumerate(listed if isinstance(listed, list) else ()):
            name = one.get("name") if isinstance(one, Mapping) else one
            if isinstance(name, str):
                yield f"/{key}/{number}", name


def _missing(message: str) -> str:
    return f"{message} now; the document is stored all the same: correct the name, or see that it is there in time"


def _shown(name: str) -> str:
    return repr(capped(name, 80))

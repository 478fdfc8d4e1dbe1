"""From a tool as an MCP server lists it to a `ToolDefinition`, and from a result to an output; pure."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from planq.shared.agentic.results.artifacts import MAX_CONTENT
from planq.shared.agentic.results.texts import tool_outcome
from planq.shared.agentic.schema.schemas import rebase
from planq.shared.agentic.tools.definition import ToolDefinition, default_retries
from planq.shared.agentic.tools.scoping import unscoped_schema
from planq.shared.kernel.states import Effect, Pool, Recovery
from planq.shared.platform.errors import InvalidOutput
from planq.shared.platform.values.media import media_type_of
from planq.worker.tools.errors import ToolError
from planq.worker.tools.mcp.config import McpServer, name_prefix

_NAME_CHARS = 128

UNDECLARED_OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "The text that the tool said, under `text`; or the object that it returned, as it is.",
    "properties": {
        "text": {"description": "What the tool said, where it returned no object."},
        "content": {
            "description": "Links and resources that came with the text; of images, sounds and other bytes "
            "the artifact_id."
        },
    },
    "additionalProperties": True,
}
"""Output schema of a tool that declares none: any object, because servers may return one anyway."""


def registry_name(server: str, tool: str) -> str:
    """Return `server_tool` (docs/decisions.md, D24), with every character that a tool name cannot hold as `_`."""
    return (name_prefix(server) + re.sub(r"[^A-Za-z0-9_]", "_", tool))[:_NAME_CHARS]


def registry_names(server: str, tools: Collection[str], servers: Collection[str]) -> dict[str, str]:
    """Return unique registry names: if a plain name belongs to another tool or server, it gets a hash."""
    prefix = name_prefix(server)
    longer = [one for one in map(name_prefix, servers) if one.startswith(prefix) and one != prefix]
    plain = {tool: registry_name(server, tool) for tool in tools}
    shared = Counter(plain.values())
    names = {}
    for tool, name in plain.items():
        is_own = shared[name] == 1 or name == prefix + tool
        if not is_own or name.startswith(tuple(longer)):
            digits = sha256(tool.encode("utf-8", "replace")).hexdigest()[:8]
            name = f"{prefix}{digits}_{name.removeprefix(prefix)}"[:_NAME_CHARS]
        names[tool] = name
    return names


def effect_of(annotations: Mapping[str, Any] | None) -> Effect:
    """Return the effect class that MCP annotations stand for (docs/decisions.md, D25); without any, `unsafe`."""
    hints = annotations or {}
    if hints.get("readOnlyHint") is True:
        return Effect.READ
    return Effect.IDEMPOTENT if hints.get("idempotentHint") is True else Effect.UNSAFE


def definition_of(server: McpServer, listed: Mapping[str, Any], name: str) -> ToolDefinition:
    """Return the definition of a tool in the JSON form of `tools/list`, under its registry name."""
    effect = effect_of(listed.get("annotations"))
    declared = listed.get("outputSchema")
    scoped, prices = server.planq.user_scoped, server.planq.prices_usd
    return ToolDefinition(
        name=name,
        description=listed.get("description") or listed.get("title") or "",
        input_schema=unscoped_schema(listed["inputSchema"], scoped) if scoped else listed["inputSchema"],
        output_schema=UNDECLARED_OUTPUT_SCHEMA if declared is None else output_schema_of(declared),
        effect=effect,
        pool=Pool.IO,
        timeout_seconds=server.planq.timeout_seconds,
        longest_seconds=server.planq.longest_seconds,
        retries=default_retries(effect),
        recovery=server.planq.recovery if effect is Effect.UNSAFE else Recovery.FAIL,
        repeatable=listed["name"] in server.planq.repeatable,
        user_scoped=scoped,
        source=server.source,
        price_usd=prices.get(listed["name"], prices.get("*")),
    )


def is_object_schema(schema: Mapping[str, Any]) -> bool:
    """True when a declared output schema describes objects, as all did before MCP 2026-07-28."""
    return schema.get("type") == "object" or ("type" not in schema and "properties" in schema)


def output_schema_of(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return a declared output schema; one of other values than objects is put under `result`."""
    if is_object_schema(declared):
        return dict(declared)
    return {
        "type": "object",
        "properties": {"result": rebase(declared, "/properties/result")},
        "required": ["result"],
    }


@dataclass(frozen=True, slots=True)
class McpFile:
    """Bytes of a result: an image, a sound, or an embedded resource."""

    artifact_id: str
    data: bytes = field(repr=False)
    media_type: str


@dataclass(frozen=True, slots=True)
class McpAnswer:
    """The result of a call: `output`, `content` for models, the blocks to store (`kept`), and `files`."""

    output: dict[str, Any]
    content: str | None = None
    kept: Sequence[Any] = ()
    files: Sequence[McpFile] = ()


def answer_of(
    name: str, declared: Mapping[str, Any] | None, result: Mapping[str, Any], artifact_id: str
) -> McpAnswer:
    """Return the answer of a call from the JSON form of its `CallToolResult`.

    Structured content is the output, unchanged (a non-object under `result`); other text of the server is the
    `content`, and is stored if that is not all. Without structured content the texts are the output, and `content`
    lists the rest. Images, sounds and other bytes are `files`, each described with its `artifact_id`. Raises
    `ToolError` for `isError`, `InvalidOutput` if declared structured content is missing.
    """
    outcome = tool_outcome(name, result, declares_output=declared is not None)
    if outcome.error is not None:
        raise ToolError(outcome.error) if result.get("isError") else InvalidOutput(outcome.error)
    blocks = [block for block in result.get("content") or () if isinstance(block, Mapping)]
    structured = result.get("structuredContent")
    if structured is not None:
        is_object = isinstance(structured, Mapping) and (declared is None or is_object_schema(declared))
        output = dict(structured) if is_object else {"result": structured}
        return _accompanied(output, _unsaid(blocks, structured), artifact_id)
    others = [block for block in blocks if block.get("type") != "text"]
    if not others:
        return McpAnswer(dict(outcome.output))
    descriptions = [_told(block, f"{artifact_id}/{number}") for number, block in enumerate(others)]
    output = {**outcome.output, "content": [stated for stated, _ in descriptions]}
    kept = [block for block, (_, file) in zip(others, descriptions, strict=True) if file is None and _bytes_in(block)]
    return McpAnswer(output, kept=kept, files=[file for _, file in descriptions if file is not None])


def _accompanied(output: dict[str, Any], unsaid: Sequence[Mapping[str, Any]], artifact_id: str) -> McpAnswer:
    said: list[str] = []
    rest: list[Any] = []
    files: list[McpFile] = []
    is_whole = True
    for number, block in enumerate(unsaid):
        stated, file = _told(block, f"{artifact_id}/{number}")
        if file is None:
            rest.append(block)
        else:
            files.append(file)
        if (block.get("annotations") or {}).get("audience") == ["user"]:
            is_whole = is_whole and file is not None
        elif block.get("type") == "text":
            said.append(str(block.get("text")))
        else:
            said.append(json.dumps(stated))
            is_whole = is_whole and file is not None
    content = "\n".join(said)
    return McpAnswer(output, content or None, () if is_whole and len(content) <= MAX_CONTENT else rest, files)


def _unsaid(blocks: Sequence[Mapping[str, Any]], structured: Any) -> list[Any]:
    """Return the blocks that say more than the structured content does; its text form is asked of every server."""
    texts = [str(block.get("text")) for block in blocks if block.get("type") == "text"]
    if not texts:
        return list(blocks)
    said = texts[0] if len(texts) == 1 else None
    inner = (
        structured["result"] if isinstance(structured, Mapping) and structured.keys() == {"result"} else structured
    )
    known = (structured, inner)
    repeats = said in known or any(value in known for value in (_read(said), [_read(text) for text in texts], texts))
    return [block for block in blocks if not (repeats and block.get("type") == "text")]


def _read(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _bytes_in(block: Mapping[str, Any]) -> str | None:
    found = (block.get("resource") or {}).get("blob") if block.get("type") == "resource" else block.get("data")
    return found if isinstance(found, str) else None


def _told(block: Mapping[str, Any], artifact_id: str) -> tuple[dict[str, Any], McpFile | None]:
    encoded = _bytes_in(block)
    if encoded is None:
        return dict(block), None
    stated = {key: value for key, value in block.items() if key not in ("data", "resource")}
    stated |= {key: value for key, value in (block.get("resource") or {}).items() if key != "blob"}
    try:
        data = base64.b64decode(encoded, validate=True)
    except ValueError:
        return {**stated, "problem": "its bytes are not in base64"}, None
    file = McpFile(artifact_id, data, media_type_of(stated.get("mimeType")))
    return {**stated, "bytes": len(data), "artifact_id": artifact_id}, file

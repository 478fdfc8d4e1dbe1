"""The input of an agent's job: an action's prompt, the caller's prompt, and input data, never a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planq.shared.agentic.agents.document import AgentDocument
from planq.shared.agentic.references.grammar import walk_strings
from planq.shared.agentic.schema.schemas import compile_schema
from planq.shared.platform.errors import InvalidArguments, capped
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import sentence_list
from planq.shared.platform.values.pointers import to_pointer

_MOST_NAMED = 20
_MOST_LISTED = 5


def input_defects(
    document: AgentDocument, action: str | None, data: Mapping[str, Any] | None, *, partial: bool = False
) -> list[Defect]:
    """Return all defects of an action and its data; with `partial`, `schemas.UNKNOWN` fits everything."""
    if action is None:
        return []
    prepared = document.actions.get(action)
    if prepared is None:
        known = ", ".join(sorted(document.actions)[:_MOST_NAMED]) or "none"
        message = f"agent {document.name!r} has no action {capped(action, 80)!r}; it has {known}"
        return [Defect("action", "unknown_action", message)]
    if prepared.input_schema is None:
        return []
    found = compile_schema(prepared.input_schema).violations(dict(data or {}), partial=partial)
    return [Defect(f"with{one.pointer}", one.code, one.message) for one in found]


def unstorable_texts(data: Mapping[str, Any] | None) -> list[Defect]:
    return [
        Defect(f"with{to_pointer(tokens)}", "nul", f"the character NUL (U+0000) cannot be stored; found at {found}")
        for tokens, text in walk_strings(data or {})
        if (found := text.find("\x00")) >= 0
    ]


def input_refused(document: AgentDocument, found: Sequence[Defect]) -> InvalidArguments:
    """Return the error that lists the defects; precondition: at least one."""
    listed = sentence_list([one.message if one.pointer == "action" else one.render() for one in found], _MOST_LISTED)
    known = sorted(document.actions)[:_MOST_NAMED]
    message = capped(f"agent {document.name!r} cannot take this input:  {listed}")
    return InvalidArguments(message, errors=[one.of_body() for one in found], actions=known)


def agent_question(document: AgentDocument, action: str | None, prompt: str, data: Mapping[str, Any] | None) -> str:
    """Return the action's prompt, then `prompt`; raises `InvalidArguments` with every defect, or if empty."""
    found = input_defects(document, action, data)
    if found:
        raise input_refused(document, found)
    prepared = None if action is None else document.actions[action]
    texts = [text.strip() for text in (prepared.prompt if prepared else "", prompt) if text.strip()]
    if not texts and not data and prepared is None:
        raise InvalidArguments("an agent needs something to do: expected an action, a prompt or input data (`with`)")
    return "\n\n".join(texts)

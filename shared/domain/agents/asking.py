"""What a job asks of its agent: the prompt of an action, the caller's own prompt, and input data beside them.

Input data (`with`) is data: it is checked against the action's schema, and shown to the model fenced; no part of it
is ever read as a template or an instruction. Specifications S1 and S3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.domain.agents.document import AgentDocument
from shared.domain.errors import InvalidRequest, capped
from shared.domain.schemas import violations

_MOST_NAMED = 20


def question(document: AgentDocument, action: str | None, prompt: str, data: Mapping[str, Any] | None) -> str:
    """Return what the agent is asked in words: the action's prompt, then `prompt`.

    Raises `InvalidRequest` that names every defect: an unknown action, data that breaks its schema, nothing to ask.
    """
    prepared = None
    if action is not None:
        prepared = document.actions.get(action)
        if prepared is None:
            known = ", ".join(sorted(document.actions)[:_MOST_NAMED]) or "none"
            raise InvalidRequest(
                f"agent {document.name!r} has no action {capped(action, 100)!r}; its actions: {known}",
                actions=sorted(document.actions),
            )
    if prepared is not None and prepared.input_schema is not None:
        defects = [f"with{one.pointer}: {one.message}" for one in violations(prepared.input_schema, dict(data or {}))]
        if defects:
            raise InvalidRequest(
                f"the input of action {action!r} does not satisfy its schema: {'; '.join(defects[:5])}",
                errors=defects,
            )
    texts = [text.strip() for text in (prepared.prompt if prepared else "", prompt) if text.strip()]
    if not texts and not data and prepared is None:
        raise InvalidRequest("an agent needs something to do: expected an action, a prompt or input data (`with`)")
    return "\n\n".join(texts)

"""What a person may answer: the action under its many names, and a content that satisfies the question's schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.domain.jobs.states import ElicitationStatus
from shared.domain.schema.schemas import violations

_ACCEPT = frozenset({"accept", "accepted", "approve", "approved", "yes", "y", "submit", "submitted"})
_CANCEL = frozenset({"cancel", "canceled", "cancelled"})


def action_of(text: str) -> ElicitationStatus:
    """Return what an action means, whatever its case.

    `accept`, `approve`, `yes`, `y` and `submit` accept, `cancel` cancels; all else declines: what is not clearly a
    yes is none.
    """
    word = text.strip().lower()
    if word in _ACCEPT:
        return ElicitationStatus.ACCEPTED
    return ElicitationStatus.CANCELLED if word in _CANCEL else ElicitationStatus.DECLINED


def content_defects(schema: Mapping[str, Any] | None, content: Any) -> list[dict[str, str]]:
    """Return how a content breaks a question's schema, as `{pointer, message}` in the body of an answer."""
    if not isinstance(content, Mapping):
        return [{"pointer": "/content", "message": "expected an object with the answers by name"}]
    found = violations(schema, content) if schema else []
    return [{"pointer": f"/content{one.pointer}", "message": one.message} for one in found]

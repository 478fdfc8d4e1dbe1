"""What a person may answer: the action under its many names, and a content that satisfies the question's schema.

A message in a conversation may be an answer, too: where it fits the question, and no word of it is left over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.domain.jobs.elicitations import ElicitationAnswer
from shared.domain.jobs.states import ElicitationKind, ElicitationStatus
from shared.domain.schema.schemas import violations
from shared.domain.values.strict_json import loads

_ACCEPT = frozenset({"accept", "accepted", "approve", "approved", "yes", "y", "submit", "submitted"})
_CANCEL = frozenset({"cancel", "canceled", "cancelled"})
_MOST_BRACKETS = 100
"""Of a message that is read as JSON: nobody nests an answer so deeply."""

_DECLINE = frozenset({"decline", "declined", "deny", "denied", "no", "n", "reject", "rejected"})


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


def answer_of_message(kind: ElicitationKind, schema: Mapping[str, Any] | None, text: str) -> ElicitationAnswer | None:
    """Return the answer that a message is to a question, None where it is none.

    An approval takes a yes or a no, a form a JSON object or, where it asks for one value, that value alone: words for
    a text, yes or no for a boolean, digits for a number. What fits nothing of a form may still decline or cancel it.
    Whether a call took effect, and what is done under a URL, nobody says in passing.
    """
    if kind in (ElicitationKind.OUTCOME, ElicitationKind.URL):
        return None
    if kind is ElicitationKind.FORM:
        for content in _contents(schema, text.strip()):
            if not content_defects(schema, content):
                return ElicitationAnswer(kind, ElicitationStatus.ACCEPTED, content)
    said = _said(text)
    if said is None or (kind is ElicitationKind.FORM and said is ElicitationStatus.ACCEPTED):
        return None
    return ElicitationAnswer(kind, said, {} if said is ElicitationStatus.ACCEPTED else None)


def _said(text: str) -> ElicitationStatus | None:
    """Return what a message says that is nothing but one word for an action."""
    word = text.strip().rstrip(".!").lower()
    return action_of(word) if word in _ACCEPT | _CANCEL | _DECLINE else None


def _contents(schema: Mapping[str, Any] | None, text: str) -> list[Any]:
    """Return the contents that a text may stand for, the likeliest first."""
    try:
        value = loads(text) if text.count("[") + text.count("{") <= _MOST_BRACKETS else None
    except ValueError:
        value = None
    found = [value] if isinstance(value, Mapping) else []
    fields = (schema or {}).get("properties")
    if not isinstance(fields, Mapping) or len(fields) != 1:
        return found
    (name,) = fields
    word = _said(text)
    said = None if word in (None, ElicitationStatus.CANCELLED) else word is ElicitationStatus.ACCEPTED
    return [*found, *({name: one} for one in (text, said, value) if one is not None and one != "")]

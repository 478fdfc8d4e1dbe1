"""Faults that a server reports inside a reply with the status 200, in the words of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from planq.shared.platform.errors import capped

_MOST_CHARS = 2_000

_FAULTS: Final = ("error", "errors", "error_message", "error_msg")
_MESSAGES: Final = ("message", "msg", "detail", "error_message", "error_msg", "description", "error")
_CODES: Final = ("code", "status", "status_code", "error_code")
_TYPES: Final = ("type", "error_type")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault; `body` has the form of OpenAI's errors: `message`, and `code` and `type` where there are any."""

    message: str
    body: Mapping[str, Any]


def fault_in(fields: Mapping[str, Any], *, has_choice: bool) -> Fault | None:
    """Return the fault in the extra `fields` of a reply, None if none; next to a choice only a named error."""
    told = next((fields[name] for name in _FAULTS if fields.get(name)), None)
    if told is None and (has_choice or not any(fields.get(name) for name in ("message", "msg", "detail"))):
        return None
    inner = told if isinstance(told, Mapping) else {}
    message = _text(inner, _MESSAGES) or (told if isinstance(told, str) else "") or _text(fields, _MESSAGES)
    if not message:
        message = json.dumps(told, ensure_ascii=False, default=str)
    body = {"message": message}
    for key, names in (("code", _CODES), ("type", _TYPES)):
        found = _text(inner, names) or _text(fields, names)
        if found:
            body[key] = found
    return Fault(capped(message, _MOST_CHARS), body)


def _text(fields: Mapping[str, Any], names: tuple[str, ...]) -> str:
    values = (fields.get(name) for name in names)
    return next((str(value) for value in values if isinstance(value, (str, int)) and str(value).strip()), "")

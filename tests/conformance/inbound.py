"""What operations of the message flow's cases are in planq, those without a server: the suite `inbound_flow`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from planq.api.http.exchange import STATUS_OF
from planq.shared.agentic.tools.scoping import unscoped
from planq.shared.agentic.turns.wording import injection_kinds, sanitized, suspicious_arguments
from planq.shared.platform.errors import ErrorRecord, PlanqError, ToolFailed
from planq.shared.subjects.conversations.inbound import CanonicalMessage, checked_text
from planq.shared.subjects.conversations.rules import user_message_for_step
from planq.shared.subjects.tenants.config import TenantConfig
from planq.shared.subjects.tenants.prompt import tenant_prompt_defects
from planq.shared.subjects.tenants.rates import WINDOW_SECONDS, LocalWindows, RateRequest, Rates
from tests.conformance.guiding import GUIDING

Answer = Any
Adapter = Callable[[Any], Answer]

TENANT_ID = "7d0a3f6e-2c1b-4a58-9d3e-5f60718293a4"
"""The tenant of the cases' key; the originals' were UUIDs."""

CHANNELS = ["api", "web", "telegram", "whatsapp", "slack", "email"]
"""Those that the original knew, as a tenant's configuration lists them."""


def text_of(given: Mapping[str, Any], field: str) -> str:
    """Return a text that a case spells out, or as a character and how often it stands."""
    repeated = given.get(f"{field}_repeat") or given.get("repeat")
    return repeated[0] * repeated[1] if repeated else given[field]


def validate_prompt(given: Mapping[str, Any]) -> Answer:
    prompt = text_of(given, "prompt")
    codes = list(dict.fromkeys(str(defect.code) for defect in tenant_prompt_defects(prompt)))
    kept = prompt if len(prompt) < 1_000 else None
    return {"status": "rejected" if codes else "valid", "codes": codes, "sanitized": "" if codes else kept}


def sanitize(given: Mapping[str, Any]) -> Answer:
    text = sanitized(text_of(given, "text"))
    return {"text": text, "length": len(text), "suffix": text[-len("... [truncated]") :]}


def validate_message(given: Mapping[str, Any]) -> Answer:
    raw: dict[str, Any] = {
        "tenant_id": TENANT_ID,
        "channel": "web",
        "direction": "inbound",
        "from": {"type": "user", "external_id": "user-123"},
        "to": {"type": "bot", "external_id": "bot-1"},
        "content": {"type": "text", "text": "Hello"},
    }
    for path, value in given["overrides"].items():
        *above, last = path.split(".")
        place = raw
        for part in above:
            place = place[part]
        place[last] = value
    try:
        message = CanonicalMessage.model_validate(raw)
        checked_text(message, TENANT_ID, TenantConfig(channels=CHANNELS))
    except ValidationError as error:
        return {"http": 422, "detail": "; ".join(".".join(map(str, one["loc"])) for one in error.errors())}
    except PlanqError as error:
        return {"http": STATUS_OF[type(error)], "detail": error.message}
    return {"ok": True}


def scan_args(given: Mapping[str, Any]) -> Answer:
    found = suspicious_arguments(given["args"])
    return {"min_warnings": len(found), "warnings": len(found), "text": "; ".join(found), "blocks": False}


def override_params(given: Mapping[str, Any]) -> Answer:
    tool = given["tool"]
    names = tool["user_context_params"] if tool["is_user_scoped"] else []
    return {"args": dict(unscoped(given["args"], names))}


def sanitize_error(given: Mapping[str, Any]) -> Answer:
    return {"user_text": user_message_for_step(ErrorRecord.of(ToolFailed(given["error"])).code)}


def rate_limit(given: Mapping[str, Any]) -> Answer:
    assert given["window_s"] == WINDOW_SECONDS, "planq knows no other window"
    windows, rates = LocalWindows(), Rates(given["tenant_limit"], given["channel_limit"])
    requests = [(RateRequest(TENANT_ID, asked["channel"], rates), float(asked["t"])) for asked in given["requests"]]
    return {"allowed": [windows.check(request, at).is_allowed for request, at in requests]}


INBOUND: dict[str, dict[str, Adapter]] = {
    "inbound_flow": {
        **GUIDING,
        "validate_prompt": validate_prompt,
        "detect_injection": lambda given: {"types": injection_kinds(given["text"])},
        "sanitize": sanitize,
        "validate_message": validate_message,
        "scan_args": scan_args,
        "override_params": override_params,
        "sanitize_error": sanitize_error,
        "rate_limit": rate_limit,
    }
}

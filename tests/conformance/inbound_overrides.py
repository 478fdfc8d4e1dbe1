"""Where docs/decisions.md overrides a `real` case of the message flow (`inbound_flow`), the tool loop apart.

Everything is worked out from a case's input, so that cases nobody here has seen are judged the same way.
"""

from __future__ import annotations

import re
from typing import Any

from tests.conformance.cases import Case
from tests.conformance.rule import Expected, Rule

_TWO_QUALIFIERS = re.compile(
    r"\b(?:ignore|forget|disregard|override)\s+(?:(?:previous|prior|earlier|above|all|any|the|your|of|these|those)\s+)+"
    r"(?:instruction|rule|prompt)s?\b",
    re.IGNORECASE,
)


def _overridden(case: Case, field: str) -> Any:
    return case.input["overrides"].get(field)


def _steers(case: Case, expected: Expected) -> bool:
    is_known = "meta_instruction" in expected["types"]
    return case.profile == "real" and not is_known and _TWO_QUALIFIERS.search(case.input["text"]) is not None


def _is_refused(case: Case, expected: Expected) -> bool:
    return case.profile == "real" and expected.get("http") == 400 and _overridden(case, "tenant_id") != ""


def _let_in(given: Any) -> list[bool]:
    """Whether each message is let in where a refused one counts in neither window."""
    counted: list[tuple[float, str]] = []
    allowed = []
    for asked in given["requests"]:
        recent = [channel for at, channel in counted if asked["t"] - at < given["window_s"]]
        is_one = len(recent) < given["tenant_limit"] and recent.count(asked["channel"]) < given["channel_limit"]
        allowed.append(is_one)
        counted += [(asked["t"], asked["channel"])] * is_one
    return allowed


INBOUND_RULES: tuple[Rule, ...] = (
    Rule(
        "more spellings are known",
        41,
        "detect_injection",
        _steers,
        lambda case, expected: {"types": ["meta_instruction", *expected["types"]]},
    ),
    Rule(
        "telegram is a channel",
        38,
        "validate_message",
        lambda case, expected: _overridden(case, "channel") == "telegram",
        lambda case, expected: {"ok": True},
    ),
    Rule(
        "a bad field is 422",
        37,
        "validate_message",
        _is_refused,
        lambda case, expected: {**expected, "http": 422},
    ),
    Rule(
        "another tenant is foreign, however its id is written",
        20,
        "validate_message",
        lambda case, expected: bool(_overridden(case, "tenant_id")),
        lambda case, expected: {**expected, "http": 403},
    ),
    Rule(
        "a message that its channel refuses takes no place of the tenant",
        42,
        "rate_limit",
        lambda case, expected: case.input["store"] == "redis" and expected["allowed"] != _let_in(case.input),
        lambda case, expected: {"allowed": _let_in(case.input)},
    ),
    Rule(
        "what comes in is inbound",
        37,
        "validate_message",
        lambda case, expected: _overridden(case, "direction") == "outbound",
        lambda case, expected: {"http": 422},
    ),
    Rule(
        "what is not there is 404, what its state forbids 409",
        37,
        "task",
        lambda case, expected: expected.get("http") == 400,
        lambda case, expected: {**expected, "http": 404 if case.input["status"] == "missing" else 409},
    ),
    Rule(
        "what was cancelled is cancelled",
        43,
        "task",
        lambda case, expected: case.input["action"] == "cancel" and expected.get("status") == "failed",
        lambda case, expected: {**expected, "status": "cancelled"},
    ),
    Rule(
        "to cancel again changes nothing",
        43,
        "task",
        lambda case, expected: (case.input["action"], case.input["status"]) == ("cancel", "cancelled"),
        lambda case, expected: {"status": "cancelled"},
    ),
    Rule(
        "a plan that is not there is 404",
        37,
        "http",
        lambda case, expected: case.input["path"].startswith("/plans/") and expected["status"] == 400,
        lambda case, expected: {**expected, "status": 404},
    ),
    Rule(
        "a message that is still to be answered names its conversation",
        58,
        "http",
        lambda case, expected: expected.get("body", {}).get("status") == "queued",
        lambda case, expected: {**expected, "body": {**expected["body"], "conversation_id": "*"}},
    ),
    Rule(
        "what the provider did is no fault of planq's or of the caller's",
        37,
        "http",
        lambda case, expected: "llm_error" in case.input and expected["status"] in (401, 500),
        lambda case, expected: {**expected, "status": 502},
    ),
)

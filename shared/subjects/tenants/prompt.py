"""Validate a tenant's prompt, which must not override the prompts above it (docs/decisions.md, D41).

It knows common English spellings only; the fixed prompts above are what protects.
"""

from __future__ import annotations

import re
from enum import StrEnum

from planq.shared.platform.errors import InvalidRequest, capped
from planq.shared.platform.values.defects import Defect

MAX_TENANT_PROMPT_CHARS = 8_000


class PromptCode(StrEnum):
    """Codes of defects."""

    TOO_LONG = "TOO_LONG"
    META_OVERRIDE = "META_OVERRIDE_ATTEMPT"
    SAFETY_BYPASS = "SAFETY_BYPASS_ATTEMPT"
    DISCLOSURE = "SYSTEM_PROMPT_DISCLOSURE_ATTEMPT"
    ROLE_REASSIGNMENT = "ROLE_REASSIGNMENT_ATTEMPT"


def _words(text: str) -> re.Pattern[str]:
    return re.compile(text.replace(" ", r"\s+"), re.IGNORECASE)


_EARLIER = r"(?:(?:all|any|of|the|your) )*(?:previous|prior|earlier|above)"
_PATTERNS: tuple[tuple[PromptCode, str, re.Pattern[str]], ...] = (
    (
        PromptCode.META_OVERRIDE,
        "a tenant's prompt cannot take back the prompts above it",
        _words(
            rf"\b(?:ignore|forget|disregard) {_EARLIER} (?:instruction|rule)s?\b"
            r"|\byou are (?:no longer|not) bound by\b|\byou must ignore the platform rules\b"
        ),
    ),
    (
        PromptCode.SAFETY_BYPASS,
        "a tenant's prompt cannot switch off what keeps people safe",
        _words(
            r"\bdisable (?:safety|(?:the )?guardrails?)\b|\bbypass security\b"
            r"|\bact as if there (?:are|were) no restrictions\b"
        ),
    ),
    (
        PromptCode.DISCLOSURE,
        "a tenant's prompt cannot have prompts or configuration shown to people",
        _words(
            r"\b(?:reveal|show|print) (?:(?:your|the) )?system prompt\b|\breveal internal configuration\b"
            r"|\breveal previous system messages?\b"
        ),
    ),
    (
        PromptCode.ROLE_REASSIGNMENT,
        "a tenant's prompt cannot make something else of the assistant",
        _words(r"\byou are not an ai assistant any ?more\b|\byou are now dan\b"),
    ),
)


def tenant_prompt_defects(prompt: str) -> list[Defect]:
    """Return the defects in the order of codes; a too long prompt has only that one."""
    if len(prompt) > MAX_TENANT_PROMPT_CHARS:
        message = f"expected at most {MAX_TENANT_PROMPT_CHARS} characters, found {len(prompt)}"
        return [Defect("prompt", PromptCode.TOO_LONG, message)]
    return [
        Defect("prompt", code, f"{message}; leave out {capped(found[0], 80)!r}")
        for code, message, pattern in _PATTERNS
        for found in pattern.finditer(prompt)
    ]


def check_tenant_prompt(prompt: str) -> None:
    """Raise `InvalidRequest` with every defect and its `code`."""
    defects = tenant_prompt_defects(prompt)
    if defects:
        errors = [{**one.of_body(), "code": one.code} for one in defects]
        raise InvalidRequest("; ".join(f"prompt: {one.code}: {one.message}" for one in defects), errors=errors)

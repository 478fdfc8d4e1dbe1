"""How a model is called: one record for the operator's settings of a model, for an agent's document and for a job."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from planq.shared.agentic.models.names import MODEL_PATTERN
from planq.shared.platform.values.describe import MAX_DEPTH, is_deeper_than

_MAX_BODY_CHARS = 16_384
_MAX_HEADERS = 20
_MAX_HEADER_CHARS = 4_096
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_|~-]{1,64}")

OWN_HEADERS = frozenset(
    {
        "api-key",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "openai-organization",
        "openai-project",
        "proxy-authorization",
        "te",
        "transfer-encoding",
        "upgrade",
        "x-api-key",
        "x-goog-api-key",
        "x-goog-user-project",
    }
)
"""Headers that authenticate or describe the request: agents and jobs must not set them."""

OWN_FIELDS = frozenset(
    {
        "best_of",
        "contents",
        "input",
        "max_completion_tokens",
        "max_output_tokens",
        "max_tokens",
        "messages",
        "model",
        "models",
        "n",
        "previous_response_id",
        "provider",
        "service_tier",
        "stream",
        "stream_options",
        "system",
        "tool_choice",
        "tools",
    }
)
"""Fields of a request that limits, prices and permissions depend on; `extra_body` must not replace them."""


def _checked_body(body: dict[str, Any]) -> dict[str, Any]:
    if own := sorted(OWN_FIELDS & set(body)):
        raise ValueError(f"expected fields that planq does not write itself, found {', '.join(own)}; leave them out")
    if is_deeper_than(body, MAX_DEPTH):
        raise ValueError(f"expected at most {MAX_DEPTH} levels of JSON, found more")
    size = len(json.dumps(body, default=str))
    if size > _MAX_BODY_CHARS:
        raise ValueError(f"expected at most {_MAX_BODY_CHARS} characters of JSON, found {size}")
    return body


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or not (value.isascii() and value.isprintable()):
            raise ValueError(f"expected names and values of HTTP headers, found {name[:80]!r}")
        if len(value) > _MAX_HEADER_CHARS:
            raise ValueError(f"expected at most {_MAX_HEADER_CHARS} characters in a header, found {len(value)}")
    return headers


def _without_own_headers(headers: dict[str, str]) -> dict[str, str]:
    if own := sorted(name for name in headers if name.lower() in OWN_HEADERS):
        raise ValueError(f"only an operator may set the headers {', '.join(own)}; leave them out")
    return headers


_Headers = Annotated[dict[str, str], Field(max_length=_MAX_HEADERS), AfterValidator(_checked_headers)]
_Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class CallSettings(BaseModel):
    """Settings of a call; None falls back to the less specific settings, and last to the provider."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    stop: Annotated[list[_Stop], Field(max_length=4)] | None = None
    max_tokens: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    thinking: bool | Literal["minimal", "low", "medium", "high", "xhigh"] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    parallel_tool_calls: bool | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=3_600)] | None = None
    first_token_seconds: Annotated[float, Field(gt=0, le=3_600)] | None = None
    extra_body: Annotated[dict[str, Any], AfterValidator(_checked_body)] | None = None
    extra_headers: _Headers | None = None

    def over(self, less: CallSettings | None) -> CallSettings:
        """Return these settings with gaps filled from `less`; bodies and headers are merged."""
        if less is None:
            return self
        joined: dict[str, Any] = {}
        for name in ("extra_body", "extra_headers"):
            both = (getattr(less, name) or {}) | (getattr(self, name) or {})
            joined[name] = both or None
        said = {**less.model_dump(exclude_none=True), **self.model_dump(exclude_none=True)}
        return CallSettings.model_construct(**{**said, **joined})


class AgentCallSettings(CallSettings):
    """Settings that an agent's document or a job may make: no authentication headers, no priority tier."""

    service_tier: Literal["auto", "default", "flex"] | None = None
    extra_headers: Annotated[_Headers, AfterValidator(_without_own_headers)] | None = None


_NAME = re.compile(MODEL_PATTERN)


SettingsOfModels = Mapping[str, CallSettings]
"""The operator's settings by the full name of a model, or by a prefix and `*`."""


def settings_of(model: str, known: SettingsOfModels) -> CallSettings:
    """Return the settings for a model: longer prefixes win over shorter ones, its own name over all."""
    found = CallSettings()
    for pattern in sorted(known, key=lambda one: (not one.endswith("*"), len(one))):
        if pattern == model or (pattern.endswith("*") and model.startswith(pattern[:-1])):
            found = known[pattern].over(found)
    return found


def checked_settings(given: SettingsOfModels) -> SettingsOfModels:
    """Return the settings; raises `ValueError` for a key that names no model."""
    for pattern in given:
        name = pattern if not pattern.endswith("*") else f"{pattern[:-1]}x"
        if pattern != "*" and not _NAME.fullmatch(name):
            raise ValueError(f"expected names of models, as in openai:gpt-5 or mistral:*, found {pattern[:80]!r}")
    return given

"""Binds a model's answer to a JSON Schema with the provider's own means, if it has any.

pydantic-ai (2.68) knows which models can do it (`supports_json_schema_output` of the model's profile) and converts
the schema; the reader of the answer checks what the provider's form cannot express. Otherwise, or if the server
refuses the schema, it goes into the instructions (`ModelRequest.in_words`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings as WireSettings

from planq.shared.agentic.models.names import ModelName, Provider
from planq.worker.models.provider_errors import FOREIGN
from planq.worker.models.request import ModelRequest
from planq.worker.models.schemas import is_object, opened

_log = logging.getLogger("planq.llm")

_MOST_KEPT = 1_000

_REFUSED = frozenset({400, 404, 405, 415, 422, 501})
"""Statuses with which servers refuse a parameter or its value."""

_UNSUITABLE: tuple[type[Exception], ...] = (*FOREIGN, AssertionError)

_WORDS = (
    "schema",
    "response_format",
    "output_format",
    "output_config",
    "text.format",
    "grammar",
    "structured output",
)
"""Words in such refusals: parameters of OpenAI, Anthropic and Google, and their purpose."""

_PARAMETERS = ("response_format", "output_format", "output_config", "text.format", "response_schema", "json mode")
_OF_ONE_SCHEMA = (
    "invalid schema",
    "schema for",
    "in context",
    "too many",
    "too complex",
    "must be",
    "$ref",
    "required",
)
"""Words of a refusal that is about this one schema: another schema may be accepted."""


class RefusedSchemas:
    """The schemas that models have refused, so that they are not sent again."""

    def __init__(self) -> None:
        self._refused: set[tuple[str, str]] = set()

    def holds(self, name: ModelName, request: ModelRequest) -> bool:
        return bool(self._refused) and _key(name, request) in self._refused

    def add(self, name: ModelName, request: ModelRequest) -> None:
        """Remember a refusal; at `_MOST_KEPT` all earlier ones are forgotten."""
        if len(self._refused) >= _MOST_KEPT:
            self._refused.clear()
        self._refused.add(_key(name, request))
        _log.warning("model_refused_schema", extra={"model": name.full})


def _key(name: ModelName, request: ModelRequest) -> tuple[str, str]:
    text = json.dumps(request.answer_schema, sort_keys=True)
    return name.full, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def constrained(
    model: Model, provider: Provider | None, schema: Mapping[str, Any], settings: WireSettings
) -> ModelRequestParameters | None:
    """Return the parameters that bind `model` to `schema`, None if its provider has no means for it."""
    if not model.profile.get("supports_json_schema_output", False):
        return None
    is_open = _has_open_object(schema)
    if provider is Provider.ANTHROPIC and is_open:
        # It closes every object, so an object without listed properties could only be empty.
        return None
    # Strict modes forbid open objects; by default pydantic-ai closes objects that list nothing.
    strict = False if is_open else None
    wanted = OutputObjectDefinition(json_schema=opened(schema), name="answer", strict=strict)
    parameters = ModelRequestParameters(output_mode="native", output_object=wanted)
    try:
        model.prepare_request(settings, parameters)
    except _UNSUITABLE:
        # The provider's form cannot express it: too many optional fields, a schema without a type.
        return None
    return parameters


def refuses_schema(error: ModelAPIError) -> bool:
    """Return whether the server may have refused the answer's schema: its reply names it, or the parameter."""
    if not isinstance(error, ModelHTTPError) or error.status_code not in _REFUSED:
        return False
    answer = f"{error.message} {error.body}".lower()
    return any(word in answer for word in _WORDS)


def is_about_parameter(words: str) -> bool:
    """Return whether a server refuses every schema, not only this one."""
    answer = words.lower()
    return any(word in answer for word in _PARAMETERS) and not any(word in answer for word in _OF_ONE_SCHEMA)


def _has_open_object(schema: Any) -> bool:
    return any(
        bool(one.get("additionalProperties")) or not one.get("properties")
        for one in _schemas(schema)
        if is_object(one)
    )


def _schemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    stack = [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            yield item
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)

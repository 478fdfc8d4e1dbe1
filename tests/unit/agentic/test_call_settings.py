"""Settings of model calls: bounds, merging, and what an agent may not say."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from pydantic import ValidationError

from planq.shared.agentic.agents.document import AgentDocument
from planq.shared.agentic.models.call_settings import (
    OWN_FIELDS,
    OWN_HEADERS,
    AgentCallSettings,
    CallSettings,
    checked_settings,
    settings_of,
)

FULL: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 7,
    "stop": ["END"],
    "max_tokens": 100,
    "thinking": "low",
    "service_tier": "flex",
    "parallel_tool_calls": False,
    "timeout_seconds": 10,
    "first_token_seconds": 5,
    "extra_body": {"top_k": 3},
    "extra_headers": {"X-Title": "planq"},
}


def test_a_full_record_is_read() -> None:
    assert CallSettings.model_validate(FULL).model_dump() == FULL
    assert AgentDocument.of({"name": "a", "model_settings": FULL}).model_settings == AgentCallSettings(**FULL)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.1),
        ("temperature", -1),
        ("top_p", 0),
        ("seed", 2**31),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", [""]),
        ("max_tokens", 0),
        ("thinking", "very"),
        ("service_tier", "gold"),
        ("timeout_seconds", 0),
        ("extra_body", {"x": "y" * 20_000}),
        ("extra_body", {"x": functools.reduce(lambda inner, _: [inner], range(200), [])}),
        ("extra_body", []),
        ("extra_headers", {"a b": "c"}),
        ("extra_headers", {"a": "b\r\nc: d"}),
        ("extra_headers", {"a": "b" * 4_097}),
        ("extra_headers", {f"h{number}": "v" for number in range(21)}),
        ("unknown", 1),
        *(("extra_body", {name: 1}) for name in sorted(OWN_FIELDS)),
    ],
)
def test_what_is_out_of_bounds_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        CallSettings.model_validate({field: value})
    with pytest.raises(ValidationError, match=field):
        AgentDocument.of({"name": "a", "model_settings": {field: value}})


@pytest.mark.parametrize("header", sorted(OWN_HEADERS))
def test_only_an_operator_may_say_who_asks(header: str) -> None:
    assert CallSettings.model_validate({"extra_headers": {header.title(): "x"}}).extra_headers
    with pytest.raises(ValidationError, match="only an operator may set the headers"):
        AgentCallSettings.model_validate({"extra_headers": {header.title(): "x"}})


def test_an_agent_may_not_ask_for_a_dearer_tier() -> None:
    assert CallSettings(service_tier="priority").service_tier == "priority"
    with pytest.raises(ValidationError, match="service_tier"):
        AgentCallSettings.model_validate({"service_tier": "priority"})


def test_what_is_more_specific_wins_field_by_field() -> None:
    agent = AgentCallSettings(top_p=0.1, thinking=False, extra_body={"a": 1})
    model = CallSettings(top_p=0.9, seed=3, thinking=True, extra_body={"a": 2, "b": 2}, extra_headers={"x": "y"})

    merged = agent.over(model)

    assert (merged.top_p, merged.seed, merged.thinking) == (0.1, 3, False)
    assert (merged.extra_body, merged.extra_headers) == ({"a": 1, "b": 2}, {"x": "y"})
    assert agent.over(None) is agent


def test_a_models_settings_are_those_of_its_name_and_of_its_beginnings() -> None:
    given = {
        "*": CallSettings(seed=1, top_p=0.1, max_tokens=1),
        "openai:gpt-5*": CallSettings(seed=3),
        "openai:*": CallSettings(seed=2, top_p=0.2),
        "openai:gpt-5-mini": CallSettings(max_tokens=4),
    }
    found = settings_of("openai:gpt-5-mini", checked_settings(given))

    assert (found.seed, found.top_p, found.max_tokens) == (3, 0.2, 4)
    assert settings_of("mistral:large", given).seed == 1
    assert settings_of("openai:x", {}) == CallSettings()
    with pytest.raises(ValueError, match="expected names of models"):
        checked_settings({"gpt-5": CallSettings()})

"""Which model names are accepted, and from whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.names import Provider, check_model_name, key_name, parse_model_name
from planq.shared.platform.errors import InvalidRequest, Misconfigured
from planq.worker.models.settings import ModelSettings


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("openai:gpt-5", Provider.OPENAI, "gpt-5"),
        ("anthropic:claude-haiku-4-5", Provider.ANTHROPIC, "claude-haiku-4-5"),
        ("google:gemini-2.5-flash", Provider.GOOGLE, "gemini-2.5-flash"),
        ("mistral:mistral-large-latest", Provider.MISTRAL, "mistral-large-latest"),
        ("openai-responses:gpt-5", Provider.OPENAI_RESPONSES, "gpt-5"),
        ("openai:meta-llama/Llama-3.3-70B:free", Provider.OPENAI, "meta-llama/Llama-3.3-70B:free"),
    ],
)
def test_a_providers_model_is_parsed(name: str, provider: Provider, model: str) -> None:
    parsed = parse_model_name(name)

    assert (parsed.full, parsed.provider, parsed.model, parsed.is_offline) == (name, provider, model, False)


def test_a_server_of_a_provider_is_parsed() -> None:
    parsed = parse_model_name("vllm@gpu-1:Qwen/Qwen3-8B")

    assert (parsed.provider, parsed.server, parsed.model) == (Provider.VLLM, "gpu-1", "Qwen/Qwen3-8B")
    assert (parsed.place, key_name(parsed.place)) == ("vllm@gpu-1", "vllm_gpu_1_api_key")
    assert parse_model_name("openai:a@b").place == "openai"


def test_offline_and_cassette_are_parsed() -> None:
    assert parse_model_name("offline").is_offline
    cassette = parse_model_name("cassette:demo dir/a.jsonl")
    assert (cassette.cassette, cassette.is_offline, cassette.provider) == ("demo dir/a.jsonl", False, None)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpt-5",
        "Offline",
        "offline:x",
        "openai:",
        "openai: gpt",
        "unknown:large",
        "google:../../v1/files",
        "google:a//b",
        "google:a?key=x",
        "openai:a\nb",
        "openai@:a",
        "openai@A:a",
        "openai@a@b:c",
        "@house:a",
        "openai:" + "x" * 200,
        "cassette:",
        "cassette: ",
        "cassette:a\0b",
    ],
)
def test_anything_else_is_refused_with_what_is_expected(name: str) -> None:
    with pytest.raises(InvalidRequest, match="expected offline, openai:<model>") as caught:
        check_model_name(name, allow_cassette=True)

    assert caught.value.details == {"field": "model"}


def test_a_cassette_is_refused_from_a_request() -> None:
    check_model_name("cassette:/etc/passwd", allow_cassette=True)
    with pytest.raises(InvalidRequest, match="operator's choice"):
        check_model_name("cassette:/etc/passwd", allow_cassette=False)
    check_model_name("offline", allow_cassette=False)
    check_model_name("openai:gpt-5", allow_cassette=False)


@given(st.text())
def test_no_text_does_more_than_being_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_model_name(f"{name}?", allow_cassette=False)

    assert len(caught.value.message) < 1_000


def test_settings_refuse_what_could_only_fail_later() -> None:
    with pytest.raises(Misconfigured, match="default model"):
        ModelSettings(default_model="gpt-5")
    with pytest.raises(Misconfigured, match="max_attempts"):
        ModelSettings(max_attempts=0)
    with pytest.raises(Misconfigured, match="backoff_cap"):
        ModelSettings(backoff_cap=-1)


def test_settings_do_not_show_keys() -> None:
    assert "sk-secret" not in repr(ModelSettings(api_keys={Provider.OPENAI: "sk-secret"}))

"""What a model needs beside its name: an SDK, an address, a key; said before any job fails for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from planq.shared.agentic.models.names import Provider, ProviderTraits, parse_model_name
from planq.shared.platform.errors import Misconfigured, ModelRefused
from planq.shared.settings.settings import Settings
from planq.worker.model_gateway import model_settings, require_key
from planq.worker.models.clients import Models, load_sdk
from planq.worker.models.settings import ModelSettings

NOVA = "bedrock:us.amazon.nova-pro-v1:0"


@pytest.fixture
def without_boto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Provider.BEDROCK, "traits", ProviderTraits(sdk=("no_such_package_here.at_all", "bedrock")))


@pytest.mark.usefixtures("without_boto")
def test_a_missing_sdk_is_named_with_what_to_install() -> None:
    expected = "the provider bedrock needs the package no_such_package_here.at_all"
    with pytest.raises(Misconfigured, match=expected) as caught:
        require_key(
            Settings(model="bedrock:us.amazon.nova-pro-v1:0"), parse_model_name("bedrock:us.amazon.nova-pro-v1:0")
        )
    assert "pip install 'planq[bedrock]'" in caught.value.message
    with pytest.raises(ModelRefused, match=expected):
        load_sdk(Provider.BEDROCK)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("mistral:large", "set MISTRAL_API_KEY"),
        ("vllm@gpu:m", "PLANQ_MODEL_SERVERS has no vllm@gpu"),
        ("openai:gpt-5", "set OPENAI_API_KEY"),
    ],
)
def test_a_missing_key_or_server_is_named(model: str, expected: str) -> None:
    with pytest.raises(Misconfigured, match=expected):
        require_key(Settings(model=model), parse_model_name(model))


@pytest.mark.parametrize("model", ["ollama:llama3.2", "offline", "openai@house:m"])
def test_what_needs_no_key_is_taken_without_one(model: str) -> None:
    settings = Settings(model=model, model_servers={"openai@house": {"base_url": "http://127.0.0.1:1/v1"}})
    require_key(settings, parse_model_name(model))


def test_servers_are_read_with_their_addresses_and_keys() -> None:
    settings = Settings(
        mistral_api_key="sk-of-mistral",
        model_servers={"openai@house": {"base_url": "http://127.0.0.1:1/v1", "key": "sk-of-the-house"}},
    )

    made = model_settings(settings)

    assert made.api_keys == {"mistral": "sk-of-mistral", "openai@house": "sk-of-the-house"}
    assert made.base_urls == {"openai@house": "http://127.0.0.1:1/v1"}
    assert {"sk-of-mistral", "sk-of-the-house"} <= settings.secrets
    assert "sk-of-the-house" not in repr(settings)


@pytest.mark.parametrize(
    "servers",
    [
        {"openai": {"base_url": "http://a/v1"}},
        {"nobody@house": {"base_url": "http://a/v1"}},
        {"openai@House": {"base_url": "http://a/v1"}},
        {"openai@house": {}},
        {"openai@house": {"base_url": "file:///etc/passwd"}},
        {"openai@house": {"base_url": "http://a/v1", "key": "short"}},
        {"openai@house": {"base_url": "http://a/v1", "provider": "x"}},
    ],
)
def test_a_server_that_could_only_fail_later_is_refused(servers: dict[str, dict[str, str]]) -> None:
    with pytest.raises(ValueError, match=r"model_servers|MODEL_SERVERS"):
        Settings(model_servers=servers)


def test_bedrock_is_made_from_its_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    async def look() -> tuple[str, float, float]:
        models = Models(ModelSettings(api_keys={"bedrock": "token-0123456789"}, request_timeout=45.0))
        try:
            model: Any = models.model(parse_model_name(NOVA), None, frozenset(), is_stream=True)
            return model.system, model.client.meta.config.read_timeout, model.client.meta.config.connect_timeout
        finally:
            await models.aclose()

    assert asyncio.run(look()) == ("bedrock", 45.0, 5.0)

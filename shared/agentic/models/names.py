"""The grammar of model names, for the API, the settings and the gateway.

    offline                      planq's own rules; no language model and no network
    cassette:PATH                recorded exchanges, read from a file
    PROVIDER:MODEL               as pydantic-ai spells it; `openai` also means every OpenAI-compatible server
    PROVIDER@SERVER:MODEL        the same protocol at a server that the operator has named in the settings

Only the operator may name a cassette, because it is a file: names from HTTP are checked with `allow_cassette=False`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from planq.shared.platform.errors import InvalidRequest, capped

OFFLINE = "offline"
CASSETTE_PREFIX = "cassette:"
MAX_MODEL_NAME_CHARS = 200
"""Does not apply to a cassette's path."""

# The model's part may end up in a URL path (Google), hence no "..", no "//", no "?", "#" or "%".
_MODEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_:@+\-]|[./](?![./]))*", re.ASCII)
_SERVER = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ProviderTraits:
    """How a provider is reached.

    Its key is the first of `key_variables` that is set, or `PROVIDER_API_KEY`. `url` None: pydantic-ai knows it. With
    a `vendor` planq uses an OpenAI-compatible address, and the prefix finds the models' profiles: the vendor's SDK
    would bypass planq's limits. `sdk` is the needed module and planq's extra. `needs_key` None: unless an address is
    set.
    """

    key_variables: tuple[str, ...] = ()
    url: str | None = None
    vendor: str | None = None
    sdk: tuple[str, str] | None = None
    needs_key: bool | None = None


class Provider(StrEnum):
    """A provider of models, as pydantic-ai spells it."""

    traits: ProviderTraits

    def __new__(cls, name: str, traits: ProviderTraits = ProviderTraits()) -> Self:
        made = str.__new__(cls, name)
        made._value_ = name
        made.traits = traits
        return made

    OPENAI = "openai", ProviderTraits(url="https://api.openai.com/v1")
    OPENAI_CHAT = "openai-chat", ProviderTraits(url="https://api.openai.com/v1")
    OPENAI_RESPONSES = "openai-responses", ProviderTraits(url="https://api.openai.com/v1")
    ANTHROPIC = (
        "anthropic",
        ProviderTraits(url="https://api.anthropic.com", sdk=("anthropic", "anthropic"), needs_key=True),
    )
    GOOGLE = (
        "google",
        ProviderTraits(
            ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
            "https://generativelanguage.googleapis.com",
            sdk=("google.genai", "google"),
            needs_key=True,
        ),
    )
    GOOGLE_CLOUD = "google-cloud", ProviderTraits(sdk=("google.genai", "google"), needs_key=False)
    ALIBABA = "alibaba", ProviderTraits(("ALIBABA_API_KEY", "DASHSCOPE_API_KEY"))
    AZURE = "azure", ProviderTraits(("AZURE_OPENAI_API_KEY",))
    BEDROCK = "bedrock", ProviderTraits(("AWS_BEARER_TOKEN_BEDROCK",), sdk=("boto3", "bedrock"), needs_key=False)
    CEREBRAS = "cerebras"
    COHERE = "cohere", ProviderTraits(("CO_API_KEY",), "https://api.cohere.ai/compatibility/v1", "cohere/")
    CRUSOE = "crusoe"
    DEEPSEEK = "deepseek"
    FIREWORKS = "fireworks"
    GROQ = "groq", ProviderTraits(url="https://api.groq.com/openai/v1", vendor="groq/")
    HEROKU = "heroku", ProviderTraits(("HEROKU_INFERENCE_KEY",))
    HUGGINGFACE = "huggingface", ProviderTraits(("HF_TOKEN",), "https://router.huggingface.co/v1", "")
    LITELLM = "litellm", ProviderTraits(url="http://127.0.0.1:4000", needs_key=False)
    META = "meta"
    MISTRAL = "mistral", ProviderTraits(url="https://api.mistral.ai/v1", vendor="mistral/")
    MOONSHOTAI = "moonshotai"
    NEBIUS = "nebius"
    OLLAMA = "ollama", ProviderTraits(url="http://127.0.0.1:11434/v1", needs_key=False)
    OPENROUTER = "openrouter"
    OVHCLOUD = "ovhcloud", ProviderTraits(needs_key=False)
    SAMBANOVA = "sambanova"
    TOGETHER = "together"
    VERCEL = "vercel", ProviderTraits(("VERCEL_AI_GATEWAY_API_KEY",))
    VLLM = "vllm", ProviderTraits(url="http://127.0.0.1:8000/v1", needs_key=False)
    XAI = "xai", ProviderTraits(url="https://api.x.ai/v1", vendor="x-ai/")
    ZAI = "zai"


_PLACES = "|".join(sorted(Provider, key=len, reverse=True))
MODEL_PATTERN = (
    rf"^(offline|({_PLACES})(@[a-z0-9][a-z0-9-]{{0,31}})?:[A-Za-z0-9]([A-Za-z0-9_:@+\-]|[./](?![./])){{0,180}})$"
)
"""The JSON Schema pattern of names that may come in over HTTP."""


def parse_place(place: str) -> tuple[Provider, str]:
    """Split `PROVIDER` or `PROVIDER@SERVER`; raises `ValueError`."""
    prefix, at, server = place.partition("@")
    if at and not _SERVER.fullmatch(server):
        raise ValueError(f"{capped(place, 80)!r} is no PROVIDER@SERVER")
    return Provider(prefix), server


def key_name(place: str) -> str:
    """Return the name of the tenant's secret with its own key for a provider or server."""
    return re.sub(r"[@-]", "_", place) + "_api_key"


@dataclass(frozen=True, slots=True)
class ModelName:
    """A parsed name: a `provider` (with `model`), a `cassette`, or neither for `offline`; `server` may be ""."""

    full: str
    provider: Provider | None = None
    server: str = ""
    model: str = ""
    cassette: str = ""

    @property
    def place(self) -> str:
        """Return `PROVIDER` or `PROVIDER@SERVER`, the key of addresses in the settings; "" without a provider."""
        provider = "" if self.provider is None else self.provider.value
        return f"{provider}@{self.server}" if self.server else provider

    @property
    def is_offline(self) -> bool:
        return self.provider is None and not self.cassette


def parse_model_name(name: str) -> ModelName:
    """Return the parts of `name`; raises `InvalidRequest` that says what is expected."""
    if name == OFFLINE:
        return ModelName(name)
    if name.startswith(CASSETTE_PREFIX):
        path = name[len(CASSETTE_PREFIX) :]
        if not path.strip() or "\0" in path:
            raise _refused(name, allow_cassette=True)
        return ModelName(name, cassette=path)
    place, _, model = name.partition(":")
    try:
        provider, server = parse_place(place)
    except ValueError:
        raise _refused(name, allow_cassette=True) from None
    if len(name) > MAX_MODEL_NAME_CHARS or not _MODEL.fullmatch(model):
        raise _refused(name, allow_cassette=True)
    return ModelName(name, provider=provider, server=server, model=model)


def check_model_name(name: str, *, allow_cassette: bool) -> None:
    """Raise `InvalidRequest` unless `name` follows the grammar; the provider need not know the model."""
    if not allow_cassette and name.startswith(CASSETTE_PREFIX):
        raise _refused(name, allow_cassette=False)
    parse_model_name(name)


_COMMON = (Provider.OPENAI, Provider.ANTHROPIC, Provider.GOOGLE)


def _refused(name: str, *, allow_cassette: bool) -> InvalidRequest:
    providers = ", ".join(f"{provider.value}:<model>" for provider in _COMMON)
    cassette = ", cassette:<file>" if allow_cassette else ""
    hint = "" if allow_cassette or not name.startswith(CASSETTE_PREFIX) else "; a cassette is the operator's choice"
    return InvalidRequest(
        f"unknown model {capped(name, 80)!r}: expected {OFFLINE}, {providers}, another "
        f"provider of docs/models.md{cassette}{hint}",
        field="model",
    )

"""The models of one process in pydantic-ai's terms (2.68): clients, keys, and profiles with what servers refuse.

The SDKs' own retries are off (`max_retries` 0), and addresses and keys come from the settings, not from the SDKs'
environment variables.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from openai import Omit
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIChatModelSettings,
    OpenAIResponsesModel,
    OpenAIStreamedResponse,
)
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from planq.shared.domain.errors import AuthFailed
from planq.shared.domain.models.adaptations import Adaptation
from planq.shared.domain.models.names import ModelName, Provider
from planq.worker.egress import Egress
from planq.worker.llm.http_client import model_client
from planq.worker.llm.identity_cache import IdentityCache
from planq.worker.llm.replies import tolerant
from planq.worker.llm.settings import ModelSettings

if TYPE_CHECKING:
    from httpx2 import AsyncClient

_OPENAI_URL = "https://api.openai.com/v1"
_ANTHROPIC_URL = "https://api.anthropic.com"
_GOOGLE_URL = "https://generativelanguage.googleapis.com"
_NO_KEY = "no-key"
"""Sent to a compatible server that was configured without a key; the SDK refuses to send none."""

MakeModel = Callable[[str, frozenset[Adaptation]], Model]

_SDK_MODULES = {
    Provider.OPENAI: (),  # imported above
    Provider.ANTHROPIC: ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic"),
    Provider.GOOGLE: ("pydantic_ai.models.google", "pydantic_ai.providers.google"),
}

_MODELS_KEPT = 64
"""Maximum number of models of a provider that are kept; a request may name any."""

_MAKERS_KEPT = 256
"""Maximum number of tenants' keys that are kept ready; those that were not used for longest go first."""

_LOADED_LATE = ("anyio._backends._asyncio", "genai_prices.data", "jiter")
"""What every SDK would import in the middle of its first call, on the event loop (0.4 s of CPU, 2026-11)."""

_OF_MODELS = frozenset(
    {
        Adaptation.MAX_TOKENS,
        Adaptation.MAX_COMPLETION_TOKENS,
        Adaptation.NO_STRICT,
        Adaptation.NO_STREAM_OPTIONS,
    }
)
"""The adaptations that change how a model writes its requests; the others change what it is given."""


def load_sdk(provider: Provider) -> None:
    """Import what speaks to `provider`; takes seconds the first time, hence made for a thread of its own."""
    for module in (*_SDK_MODULES[provider], *_LOADED_LATE):
        importlib.import_module(module)


@dataclass(slots=True)
class _OpenClients:
    """What is open on one event loop: a client for each provider, with and without streams; makers for each key."""

    clients: dict[tuple[Provider, bool], AsyncClient] = field(default_factory=dict)
    makers: OrderedDict[tuple[Provider, bool, str | None], MakeModel] = field(default_factory=OrderedDict)


class Models:
    """The models of one process: per event loop and provider one connection pool, made at first use."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, _OpenClients] = WeakKeyDictionary()

    def prepare(self, provider: Provider, default: ModelName) -> None:
        """Make what the first call to a provider needs, on the running loop; raises `AuthFailed` without a key.

        Where it is the provider of the `default` model, that is made, too.
        """
        make = self._maker(provider, None, is_stream=self._settings.stream)
        if provider is default.provider:
            make(default.model, frozenset())

    def model(
        self, provider: Provider, name: str, key: str | None, adaptations: frozenset[Adaptation], *, is_stream: bool
    ) -> Model:
        """Return a model whose requests go out with `adaptations`; `key` is a tenant's own, None for the settings'.

        Raises `AuthFailed` without a key.
        """
        return self._maker(provider, key, is_stream=is_stream)(name, adaptations & _OF_MODELS)

    async def aclose(self) -> None:
        """Close the running loop's connection pools; new ones are made if a call follows."""
        for client in self._open.pop(asyncio.get_running_loop(), _OpenClients()).clients.values():
            await client.aclose()

    def _maker(self, provider: Provider, key: str | None, *, is_stream: bool) -> MakeModel:
        opened = self._open.setdefault(asyncio.get_running_loop(), _OpenClients())
        client = opened.clients.get((provider, is_stream))
        if client is None:
            as_streams = is_stream and provider is Provider.OPENAI
            egress, seconds = self._settings.egress or Egress(), self._settings.request_timeout
            client = model_client(egress, seconds, as_streams=as_streams)
            opened.clients[provider, is_stream] = client
        make = opened.makers.get((provider, is_stream, key))
        if make is None:
            own = self._settings if key is None else replace(self._settings, api_keys={provider: key})
            # Making a model means working out its profile, as long as a third of the whole call takes.
            make = lru_cache(maxsize=_MODELS_KEPT)(_remembering(_MAKERS[provider](own, client)))
            opened.makers[provider, is_stream, key] = make
            if len(opened.makers) > _MAKERS_KEPT:
                opened.makers.popitem(last=False)
        opened.makers.move_to_end((provider, is_stream, key))
        return make


def _openai(settings: ModelSettings, client: AsyncClient) -> MakeModel:
    base_url = settings.base_urls.get(Provider.OPENAI)
    key = settings.api_keys.get(Provider.OPENAI) or (_NO_KEY if base_url else _missing_key(Provider.OPENAI))
    provider = OpenAIProvider(base_url=base_url or _OPENAI_URL, api_key=key, http_client=client)
    responses = settings.openai_api == "responses" or (settings.openai_api == "auto" and base_url is None)
    if responses:
        return lambda name, adaptations: OpenAIResponsesModel(
            name, provider=provider, profile=_openai_profile(adaptations)
        )
    return lambda name, adaptations: _ChatModel(
        name, provider=provider, profile=_openai_profile(adaptations), adaptations=adaptations
    )


def _openai_profile(adaptations: frozenset[Adaptation]) -> OpenAIModelProfile:
    profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    if Adaptation.NO_STRICT in adaptations:
        profile["openai_supports_strict_tool_definition"] = False
    if Adaptation.MAX_TOKENS in adaptations:
        profile["openai_chat_supports_max_completion_tokens"] = False
    elif Adaptation.MAX_COMPLETION_TOKENS in adaptations:
        profile["openai_chat_supports_max_completion_tokens"] = True
    return profile


def _anthropic(settings: ModelSettings, client: AsyncClient) -> MakeModel:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(
        base_url=settings.base_urls.get(Provider.ANTHROPIC, _ANTHROPIC_URL),
        api_key=settings.api_keys.get(Provider.ANTHROPIC) or _missing_key(Provider.ANTHROPIC),
        http_client=client,
    )
    return lambda name, _: AnthropicModel(name, provider=provider)


def _google(settings: ModelSettings, client: AsyncClient) -> MakeModel:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(
        base_url=settings.base_urls.get(Provider.GOOGLE, _GOOGLE_URL),
        api_key=settings.api_keys.get(Provider.GOOGLE) or _missing_key(Provider.GOOGLE),
        http_client=client,
    )
    return lambda name, _: GoogleModel(name, provider=provider)


_MAKERS: Mapping[Provider, Callable[[ModelSettings, AsyncClient], MakeModel]] = {
    Provider.OPENAI: _openai,
    Provider.ANTHROPIC: _anthropic,
    Provider.GOOGLE: _google,
}


def _missing_key(provider: Provider) -> str:
    raise AuthFailed(
        f"no API key for {provider.value}: expected one in the settings, found none."
        f" Set {provider.value.upper()}_API_KEY, or use the model `offline`."
    )


def _remembering(make: MakeModel) -> MakeModel:
    """Return `make` for models that put a tool's schema into their provider's terms once, not for each call.

    pydantic-ai does so each time (2.68): for 25 tools that takes 4 ms, most of what a call takes here.
    """

    def made(name: str, adaptations: frozenset[Adaptation]) -> Model:
        model = tolerant(make(name, adaptations))
        customized = IdentityCache(model.customize_request_parameters)

        def customize(model_request_parameters: ModelRequestParameters) -> ModelRequestParameters:
            tools = model_request_parameters.output_tools or model_request_parameters.function_tools
            if not tools:  # made for one call, and soon gone
                return customized.make(model_request_parameters)
            return customized(model_request_parameters)

        model.customize_request_parameters = customize  # type: ignore[method-assign]
        return model

    return made


@dataclass
class _StreamedReply(OpenAIStreamedResponse):
    def _add_usage(self, usage: RequestUsage, *, reported: bool, cumulative: bool = False) -> None:
        # Asked for with `include_usage`, it comes once, at the end; some servers (xAI, Perplexity) repeat it.
        if reported:
            super()._add_usage(usage, reported=True, cumulative=True)


class _ChatModel(OpenAIChatModel):
    """An OpenAI-compatible server's model."""

    def __init__(self, name: str, *, adaptations: frozenset[Adaptation], **options: Any) -> None:
        super().__init__(name, **options)
        self._adaptations = adaptations

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _StreamedReply

    def _get_stream_options(self, model_settings: OpenAIChatModelSettings) -> Any:
        if Adaptation.NO_STREAM_OPTIONS in self._adaptations:
            return Omit()
        return super()._get_stream_options(model_settings)

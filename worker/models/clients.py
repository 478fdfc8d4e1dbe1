"""The models of one process in pydantic-ai's terms (2.68): clients, keys, and profiles with what servers refuse.

The SDKs' own retries are off (`max_retries` 0), and addresses and keys come from the settings, not from the SDKs'
environment variables.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from openai import AsyncOpenAI, Omit
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIChatModelSettings,
    OpenAIResponsesModel,
    OpenAIStreamedResponse,
)
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider as Connection
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.usage import RequestUsage

from planq.shared.agentic.models.adaptations import Adaptation
from planq.shared.agentic.models.names import ModelName, Provider, parse_place
from planq.shared.platform.errors import ModelRefused
from planq.worker.egress import Egress
from planq.worker.models.http_client import CONNECT_SECONDS, MAX_REPLY_BYTES, model_client
from planq.worker.models.identity_cache import IdentityCache
from planq.worker.models.replies import tolerant
from planq.worker.models.sdks import lacked, missing_sdk
from planq.worker.models.settings import ModelSettings

if TYPE_CHECKING:
    from httpx2 import AsyncClient

_NO_KEY = "no-key"
"""Sent to a compatible server that was configured without a key; the SDK refuses to send none."""

MakeModel = Callable[[str, frozenset[Adaptation]], Model]

_MODELS_KEPT = 64
"""Maximum number of models of a provider that are kept; a request may name any."""

_MAKERS_KEPT = 256
"""Maximum number of tenants' keys with clients kept ready; the least recently used are dropped."""

_LOADED_LATE = ("anyio._backends._asyncio", "genai_prices.data", "jiter")
"""Modules that every SDK would import during its first call, on the event loop (0.4 s of CPU, 2026-11)."""

_OF_MODELS = frozenset(
    {
        Adaptation.MAX_TOKENS,
        Adaptation.MAX_COMPLETION_TOKENS,
        Adaptation.NO_STRICT,
        Adaptation.NO_STREAM_OPTIONS,
    }
)
"""The adaptations that change how a model writes its requests; the others change the request itself."""


def load_sdk(provider: Provider) -> None:
    """Import a provider's SDK, which takes seconds: call it in a thread. Raise `ModelRefused` without the SDK."""
    if missing := missing_sdk(provider):
        raise ModelRefused(missing)
    own = provider.value.partition("-")[0]
    modules = (f"pydantic_ai.models.{own}", f"pydantic_ai.providers.{own}") if provider.traits.sdk else ()
    for module in (*modules, *_LOADED_LATE):
        importlib.import_module(module)


@dataclass(slots=True)
class _OpenClients:
    """The open clients of one event loop, by whether they read whole replies as streams, and the makers of models."""

    clients: dict[bool, AsyncClient] = field(default_factory=dict)
    makers: OrderedDict[tuple[str, bool, str | None], MakeModel] = field(default_factory=OrderedDict)


class Models:
    """The models of one process: per event loop and provider one connection pool, created at first use."""

    def __init__(self, settings: ModelSettings, *, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        self._settings = settings
        self._max_reply_bytes = max_reply_bytes
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, _OpenClients] = WeakKeyDictionary()

    def prepare(self, place: str, default: ModelName) -> None:
        """Create on the running loop what first calls to a place or the `default` model need; raise `AuthFailed`."""
        make = self._maker(place, None, is_stream=self._settings.stream)
        if place == default.place:
            make(default.model, frozenset())

    def model(
        self, name: ModelName, key: str | None, adaptations: frozenset[Adaptation], *, is_stream: bool
    ) -> Model:
        """Return a model; `key` is the tenant's, None for the settings'. Raise `AuthFailed` or `ModelRefused`."""
        return self._maker(name.place, key, is_stream=is_stream)(name.model, adaptations & _OF_MODELS)

    async def aclose(self) -> None:
        """Close the running loop's connection pools; later calls open new ones."""
        for client in self._open.pop(asyncio.get_running_loop(), _OpenClients()).clients.values():
            await client.aclose()

    def _maker(self, place: str, key: str | None, *, is_stream: bool) -> MakeModel:
        opened = self._open.setdefault(asyncio.get_running_loop(), _OpenClients())
        make = opened.makers.get((place, is_stream, key))
        if make is None:
            provider = parse_place(place)[0]
            as_streams = is_stream and provider.traits.sdk is None
            client = opened.clients.get(as_streams)
            if client is None:
                egress, seconds = self._settings.egress or Egress(), self._settings.request_timeout
                client = opened.clients[as_streams] = model_client(
                    egress, seconds, as_streams=as_streams, max_bytes=self._max_reply_bytes
                )
            if failure := lacked(self._settings, place, has_key=key is not None):
                raise failure
            own = self._settings if key is None else replace(self._settings, api_keys={place: key})
            # To create a model, its profile is worked out: a third of the time of the whole call.
            make = lru_cache(maxsize=_MODELS_KEPT)(_remembering(_maker_at(place, provider, own, client)))
            opened.makers[place, is_stream, key] = make
            if len(opened.makers) > _MAKERS_KEPT:
                opened.makers.popitem(last=False)
        opened.makers.move_to_end((place, is_stream, key))
        return make


def _maker_at(place: str, provider: Provider, settings: ModelSettings, client: AsyncClient) -> MakeModel:
    url, key = settings.base_urls.get(place), settings.api_keys.get(place)
    try:
        connection = _connection(provider, url or provider.traits.url, key, client, settings.request_timeout)
    except (UserError, ValueError) as error:
        raise ModelRefused(f"the settings of {place} are not enough for its provider: {error}") from error
    is_openai = provider is Provider.OPENAI
    is_own = is_openai and settings.openai_api == "auto" and url is None
    kind = provider.value
    if is_openai:
        kind = "openai-responses" if settings.openai_api == "responses" or is_own else "openai-chat"
    elif provider.traits.vendor is not None:
        kind = "openai-chat"

    def make(name: str, adaptations: frozenset[Adaptation]) -> Model:
        model = infer_model(f"{kind}:{name}", provider_factory=lambda _: connection)
        if isinstance(model, OpenAIChatModel):
            return _lenient(type(model))(
                name, provider=connection, profile=_openai_profile(adaptations), adaptations=adaptations
            )
        if provider is Provider.ANTHROPIC:
            # Marks on blocks, which every gateway of this format takes, and not the field of the whole request.
            profile = ModelProfile(supports_auto_cache=False)
            return type(model)(name, provider=connection, profile=profile)  # type: ignore[call-arg, arg-type]
        if isinstance(model, OpenAIResponsesModel):
            return type(model)(name, provider=connection, profile=_openai_profile(adaptations))
        return model

    return make


def _connection(
    provider: Provider, url: str | None, key: str | None, client: AsyncClient, seconds: float
) -> Connection[Any]:
    """Return pydantic-ai's provider at an address; their parameters differ, so only those that it has are passed."""
    if (vendor := provider.traits.vendor) is not None:
        return OpenAICompatibleProvider(
            provider.value,
            base_url=str(url),
            api_key=key or _NO_KEY,
            http_client=client,
            profile=lambda name: OpenAICompatibleProvider.model_profile(f"{vendor}{name}"),
        )
    kind = infer_provider_class(provider.value)
    takes = inspect.signature(kind.__init__).parameters
    options: dict[str, Any] = {"http_client": client} if "http_client" in takes else {}
    if provider is Provider.BEDROCK:  # boto3 opens its own connections, and waits 60 s for one
        options |= {"aws_read_timeout": seconds, "aws_connect_timeout": min(seconds, CONNECT_SECONDS)}
    if key is not None or provider.traits.sdk is None:
        options["api_key"] = key or _NO_KEY
    if url is not None:
        named = next((name for name in ("base_url", "azure_endpoint", "api_base") if name in takes), None)
        if named is None:
            sdk = AsyncOpenAI(base_url=url, api_key=key or _NO_KEY, http_client=client)
            return kind(openai_client=sdk)  # type: ignore[call-arg]
        options[named] = url
    return kind(**options)


def _openai_profile(adaptations: frozenset[Adaptation]) -> OpenAIModelProfile:
    profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    if Adaptation.NO_STRICT in adaptations:
        profile["openai_supports_strict_tool_definition"] = False
    if Adaptation.MAX_TOKENS in adaptations:
        profile["openai_chat_supports_max_completion_tokens"] = False
    elif Adaptation.MAX_COMPLETION_TOKENS in adaptations:
        profile["openai_chat_supports_max_completion_tokens"] = True
    return profile


def _remembering(make: MakeModel) -> MakeModel:
    """Return `make` for models that convert a tool's schema once; pydantic-ai takes 4 ms for it each time."""

    def made(name: str, adaptations: frozenset[Adaptation]) -> Model:
        model = tolerant(make(name, adaptations))
        customized = IdentityCache(model.customize_request_parameters)

        def customize(model_request_parameters: ModelRequestParameters) -> ModelRequestParameters:
            tools = model_request_parameters.output_tools or model_request_parameters.function_tools
            if not tools:  # built for one call and not used again
                return customized.make(model_request_parameters)
            return customized(model_request_parameters)

        model.customize_request_parameters = customize  # type: ignore[method-assign]
        return model

    return made


@cache
def _lenient(kind: type[OpenAIChatModel]) -> Callable[..., OpenAIChatModel]:
    class Lenient(kind):  # type: ignore[valid-type, misc]
        def __init__(self, name: str, *, adaptations: frozenset[Adaptation], **options: Any) -> None:
            super().__init__(name, **options)
            self._adaptations = adaptations

        @property
        def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
            return _with_last_usage(super()._streamed_response_cls)

        def _get_stream_options(self, model_settings: OpenAIChatModelSettings) -> Any:
            if Adaptation.NO_STREAM_OPTIONS in self._adaptations:
                return Omit()
            return super()._get_stream_options(model_settings)

    return Lenient


@cache
def _with_last_usage(kind: type[OpenAIStreamedResponse]) -> type[OpenAIStreamedResponse]:
    """Return a reader of streams that counts the last usage reported: some servers (xAI, Perplexity) repeat it."""

    @dataclass
    class LastUsage(kind):  # type: ignore[valid-type, misc]
        def _add_usage(self, usage: RequestUsage, *, reported: bool, cumulative: bool = False) -> None:
            if reported:
                super()._add_usage(usage, reported=True, cumulative=True)

    return LastUsage

"""OpenAI, Anthropic, Google and OpenAI-compatible servers, through pydantic-ai's `direct` API (2.68).

Importing this module loads the SDKs; only the gateway does so, at the first call that needs one. The SDKs' own
retries are off (`max_retries` 0), and addresses and keys come from the settings, not from the SDKs' environment
variables.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIStreamedResponse
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings as WireSettings
from pydantic_ai.tools import ToolDefinition as WireTool
from pydantic_ai.usage import RequestUsage

from planq.shared.domain.errors import AuthFailed
from planq.shared.domain.models.exchange import ToolCallRequest
from planq.shared.domain.models.names import ModelName, Provider
from planq.shared.domain.plan.interpret import decoded
from planq.worker.egress import Egress
from planq.worker.llm.circuits import UnreadableReply
from planq.worker.llm.completion import BrokenTryUsage, Completion
from planq.worker.llm.constrained import RefusedSchemas, constrained, opened, refuses_schema
from planq.worker.llm.http_client import closing_replies, model_client
from planq.worker.llm.identity_cache import IdentityCache
from planq.worker.llm.live import LiveCall
from planq.worker.llm.messages import WireNames, state_of, wire_messages
from planq.worker.llm.provider_errors import FOREIGN, translated
from planq.worker.llm.request import ModelRequest
from planq.worker.llm.settings import ModelSettings

if TYPE_CHECKING:
    from httpx2 import AsyncClient

_log = logging.getLogger("planq.llm")

_OPENAI_URL = "https://api.openai.com/v1"
_ANTHROPIC_URL = "https://api.anthropic.com"
_GOOGLE_URL = "https://generativelanguage.googleapis.com"
_NO_KEY = "no-key"
"""Sent to a compatible server that was configured without a key; the SDK refuses to send none."""

MakeModel = Callable[[str], Model]

_SDK_MODULES = {
    Provider.OPENAI: (),  # imported above
    Provider.ANTHROPIC: ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic"),
    Provider.GOOGLE: ("pydantic_ai.models.google", "pydantic_ai.providers.google"),
}


_MODELS_KEPT = 64
"""How many models of a provider are kept; a request may name any."""

_MAKERS_KEPT = 256
"""How many keys of tenants are kept ready; those that were not used for longest go first."""

_LOADED_LATE = ("anyio._backends._asyncio", "genai_prices.data", "jiter")
"""What every SDK would import in the middle of its first call, on the event loop (0.4 s of CPU, 2026-11)."""


def load_sdk(provider: Provider) -> None:
    """Import what speaks to `provider`; takes seconds the first time, hence made for a thread of its own."""
    for module in (*_SDK_MODULES[provider], *_LOADED_LATE):
        importlib.import_module(module)


@dataclass(frozen=True, slots=True)
class _Wire:
    """A request in a provider's terms."""

    request: ModelRequest
    settings: WireSettings
    parameters: ModelRequestParameters
    names: WireNames


@dataclass(slots=True)
class _OpenClients:
    """What is open on one event loop: a client for each provider, with and without streams; makers for each key."""

    clients: dict[tuple[Provider, bool], AsyncClient] = field(default_factory=dict)
    makers: OrderedDict[tuple[Provider, bool, str | None], MakeModel] = field(default_factory=OrderedDict)


class Providers:
    """The clients of one process: per event loop and provider one connection pool, made at first use."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, _OpenClients] = WeakKeyDictionary()
        self._cannot_stream: set[str] = set()
        self._unconstrained = RefusedSchemas()

    def prepare(self, provider: Provider, default: ModelName) -> None:
        """Make what the first call to a provider needs, on the running loop; raises `AuthFailed` without a key.

        Where it is the provider of the `default` model, that is made, too.
        """
        make = self._maker(provider, None, is_stream=self._settings.stream)
        if provider is default.provider:
            make(default.model)

    async def complete(
        self,
        name: ModelName,
        request: ModelRequest,
        spent: BrokenTryUsage,
        key: str | None = None,
        live: LiveCall | None = None,
    ) -> Completion:
        """Send `request` once; raise an `ExecutionFailed` that says whether it may be sent again.

        `key` is the API key of whoever asks, None for that of the settings. What streams goes to `live`, too.

        A reply that breaks off is added to `spent`, also when the caller is cancelled; its connection is closed then.
        A server that refuses to stream is asked again for a whole reply, and from then on only for those; one that
        refuses an answer's schema is asked again in words.
        """
        provider = name.provider
        if provider is None:
            raise AssertionError(f"{name.full} is no provider's model")
        try:
            try:
                return await self._ask(provider, name, request, spent, key, live)
            except ModelHTTPError as error:
                if request.answer_schema is None or not refuses_schema(error):
                    raise
            completion = await self._ask(provider, name, request.in_words(), spent, key, live)
        except FOREIGN as error:
            raise translated(error, secret=key or self._settings.api_keys.get(provider, "")) from error
        self._unconstrained.add(name, request)
        return completion

    async def _ask(
        self,
        provider: Provider,
        name: ModelName,
        request: ModelRequest,
        spent: BrokenTryUsage,
        key: str | None,
        live: LiveCall | None,
    ) -> Completion:
        if not self._settings.stream or name.full in self._cannot_stream:
            return await self._ask_whole(provider, name, request, key)
        try:
            return await self._ask_stream(provider, name, request, spent, key, live)
        except ModelHTTPError as error:
            if not _refuses_to_stream(error):
                raise
        completion = await self._ask_whole(provider, name, request, key)
        self._cannot_stream.add(name.full)
        _log.warning("model_cannot_stream", extra={"model": name.full})
        return completion

    async def _ask_stream(
        self,
        provider: Provider,
        name: ModelName,
        request: ModelRequest,
        spent: BrokenTryUsage,
        key: str | None,
        live: LiveCall | None,
    ) -> Completion:
        if live is not None:
            live.try_anew()
        model = self._maker(provider, key, is_stream=True)(name.model)
        wire = self._wire(model, name, request)
        opened = model_request_stream(
            model,
            wire_messages(wire.request, wire.names),
            model_settings=wire.settings,
            model_request_parameters=wire.parameters,
            instrument=False,
        )
        async with closing_replies(), opened as stream:
            try:
                async for event in stream:
                    if live is not None:
                        _tell(live, event, wire.names)
                response = stream.get()
                _check_is_whole(response)
            except BaseException:
                broken = stream.get()
                spent.broke_off(completion_of(broken), partial_of(broken, request))
                raise
        if response.usage.unmeasured_requests:
            _log.warning("model_told_no_usage", extra={"model": name.model})
        return _reply_of(response, wire)

    async def _ask_whole(
        self, provider: Provider, name: ModelName, request: ModelRequest, key: str | None
    ) -> Completion:
        model = self._maker(provider, key, is_stream=False)(name.model)
        wire = self._wire(model, name, request)
        response = await model_request(
            model,
            wire_messages(wire.request, wire.names),
            model_settings=wire.settings,
            model_request_parameters=wire.parameters,
            instrument=False,
        )
        return _reply_of(response, wire)

    def _wire(self, model: Model, name: ModelName, request: ModelRequest) -> _Wire:
        """Put a request into the provider's terms; an answer schema may have to go into the instructions."""
        settings = self._wire_settings(model, request)
        if request.answer_schema is None:
            offer = _offering(request.tools)
            return _Wire(
                request, settings, offer.parameters if request.tool is None else _forcing(request.tool), offer.names
            )
        parameters = None
        if not self._unconstrained.holds(name, request):
            parameters = constrained(model, name.provider, request.answer_schema, settings)
        if parameters is None:
            return _Wire(request.in_words(), settings, ModelRequestParameters(), _NO_NAMES)
        return _Wire(request, settings, parameters, _NO_NAMES)

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

    def _wire_settings(self, model: Model, request: ModelRequest) -> WireSettings:
        timeout, most = self._settings.request_timeout, self._settings.max_output_tokens
        # `timeout` bounds each read, `request_timeout` the whole attempt: a server that drips bytes ends too.
        wire = WireSettings(
            max_tokens=min(request.max_tokens or most, most),
            max_retries=0,
            timeout=timeout,
            request_timeout=timeout,
            first_event_timeout=self._settings.first_token_timeout,
        )
        temperature = self._settings.temperature if request.temperature is None else request.temperature
        if temperature is not None:
            wire["temperature"] = temperature
        profile = model.profile
        forcible = profile.get("supports_forced_tool_choice", True)
        if request.tool and forcible and profile.get("supports_forced_tool_choice_with_thinking", True):
            # Where a model refuses to be forced, the tool still goes out as its only output, with choice "auto".
            wire["tool_choice"] = [str(request.tool["name"])]
        return wire


def _openai(settings: ModelSettings, client: AsyncClient) -> MakeModel:
    base_url = settings.base_urls.get(Provider.OPENAI)
    key = settings.api_keys.get(Provider.OPENAI) or (_NO_KEY if base_url else _missing_key(Provider.OPENAI))
    provider = OpenAIProvider(base_url=base_url or _OPENAI_URL, api_key=key, http_client=client)
    responses = settings.openai_api == "responses" or (settings.openai_api == "auto" and base_url is None)
    if responses:
        return lambda name: OpenAIResponsesModel(name, provider=provider)
    profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return lambda name: _ChatModel(name, provider=provider, profile=profile)


def _anthropic(settings: ModelSettings, client: AsyncClient) -> MakeModel:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(
        base_url=settings.base_urls.get(Provider.ANTHROPIC, _ANTHROPIC_URL),
        api_key=settings.api_keys.get(Provider.ANTHROPIC) or _missing_key(Provider.ANTHROPIC),
        http_client=client,
    )
    return lambda name: AnthropicModel(name, provider=provider)


def _google(settings: ModelSettings, client: AsyncClient) -> MakeModel:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(
        base_url=settings.base_urls.get(Provider.GOOGLE, _GOOGLE_URL),
        api_key=settings.api_keys.get(Provider.GOOGLE) or _missing_key(Provider.GOOGLE),
        http_client=client,
    )
    return lambda name: GoogleModel(name, provider=provider)


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


_STREAM_REFUSED = frozenset({400, 405, 415, 422, 501})
"""How servers refuse a parameter."""


def _refuses_to_stream(error: ModelHTTPError) -> bool:
    """Say whether the server may have refused `stream` or `stream_options`: its answer names them."""
    return error.status_code in _STREAM_REFUSED and "stream" in f"{error.message} {error.body}".lower()


def _tell(live: LiveCall, event: ModelResponseStreamEvent, names: WireNames) -> None:
    """Hand a piece of a reply on to those who follow."""
    if isinstance(event, PartDeltaEvent):
        if isinstance(event.delta, TextPartDelta):
            live.add(event.index, event.delta.content_delta)
        elif isinstance(event.delta, ToolCallPartDelta) and isinstance(event.delta.args_delta, str):
            live.add(event.index, event.delta.args_delta)
    elif isinstance(event, PartStartEvent):
        if isinstance(event.part, TextPart):
            live.begin(event.index)
            live.add(event.index, event.part.content)
        elif isinstance(event.part, ToolCallPart):
            live.begin(event.index, names.back(event.part.tool_name))
            live.add(event.index, _argument_text(event.part.args))


def _check_is_whole(response: ModelResponse) -> None:
    """Raise `UnreadableReply` when the stream ended without the event that every provider ends a reply with."""
    # pydantic-ai keeps a reason that it does not know among the details only.
    reason = response.finish_reason or (response.provider_details or {}).get("finish_reason")
    if response.state != "complete" or not reason:
        raise UnreadableReply("the model's reply broke off: its stream ended without saying why it ended")


def _forced(tool: Mapping[str, Any]) -> ModelRequestParameters:
    wire = WireTool(
        name=str(tool["name"]),
        description=str(tool["description"]),
        parameters_json_schema=opened(tool["parameters"]),
        kind="output",
        # Providers' strict modes forbid the open objects that the arguments of tools are.
        strict=False,
    )
    return ModelRequestParameters(output_mode="tool", output_tools=[wire], allow_text_output=False)


@dataclass(frozen=True, slots=True)
class _Offer:
    """Tools that a model may call, in the provider's terms."""

    parameters: ModelRequestParameters
    names: WireNames


def _offered(tools: Sequence[Mapping[str, Any]]) -> _Offer:
    names = WireNames(tools)
    wire = [
        WireTool(
            name=names.out(str(tool["name"])),
            description=str(tool["description"]),
            parameters_json_schema=opened(tool["parameters"]),
            strict=False,
        )
        for tool in tools
    ]
    return _Offer(ModelRequestParameters(function_tools=wire), names)


_NO_NAMES = WireNames(())
_forcing = IdentityCache(_forced)
_offering = IdentityCache(_offered, parts=lambda tools: tools)
"""The same parameters for the same tools, so that the models' caches by identity find them."""


def _reply_of(response: ModelResponse, wire: _Wire) -> Completion:
    """Return a whole reply, with the names of tools as they were before they were put into the provider's terms."""
    completion = completion_of(response)
    calls = [replace(call, name=wire.names.back(call.name)) for call in completion.tool_calls]
    return replace(completion, tool_calls=calls, state=state_of(response))


def _remembering(make: MakeModel) -> MakeModel:
    """Return `make` for models that put a tool's schema into their provider's terms once, not for each call.

    pydantic-ai does so each time (2.68): for 25 tools that takes 4 ms, most of what a call takes here.
    """

    def made(name: str) -> Model:
        model = make(name)
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

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _StreamedReply


_MOST_TOKENS = 2**31 - 1

_BYTES_PER_TOKEN = 4
"""A rule of thumb of the providers for English text (https://platform.openai.com/tokenizer); JSON and other languages
have fewer. Only used where a broken stream reported nothing."""


def completion_of(response: ModelResponse) -> Completion:
    """Return a whole reply."""
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    return Completion(
        text="\n\n".join(texts),
        tool_calls=[ToolCallRequest(call.tool_name, _arguments(call.args), call.tool_call_id) for call in calls],
        input_tokens=_count(response.usage.input_tokens),
        output_tokens=_count(response.usage.output_tokens),
        cost_usd=_cost(response),
        finish_reason=response.finish_reason,
    )


def partial_of(response: ModelResponse, request: ModelRequest) -> Completion:
    """Return as much of a reply as had come, with the tokens that it has probably cost.

    The provider's own numbers count where it reported them; while a reply runs they may lag behind (Anthropic begins
    with the tokens of the question), so that the output is never less than the text that came.
    """
    reported = response.usage
    asked = reported.input_tokens or _estimated(json.dumps(request.to_json(), ensure_ascii=False))
    said = max(reported.output_tokens, _estimated("".join(_received(response))))
    usage = replace(reported, input_tokens=asked, output_tokens=said, unmeasured_requests=0)
    return completion_of(replace(response, usage=usage))


def _received(response: ModelResponse) -> list[str]:
    texts = [part.content for part in response.parts if isinstance(part, (TextPart, ThinkingPart))]
    calls = [part.args for part in response.parts if isinstance(part, ToolCallPart)]
    return texts + [args if isinstance(args, str) else json.dumps(args or "") for args in calls]


def _estimated(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def _count(tokens: int) -> int:
    """Return a number of tokens that can be stored, whatever the server claims."""
    return min(max(tokens, 0), _MOST_TOKENS)


def _argument_text(raw: Any) -> str:
    """Return a call's arguments as the provider wrote them; some SDKs decode them."""
    try:
        return json.dumps(raw) if isinstance(raw, Mapping) else str(raw or "")
    except RecursionError:
        return "{… nested too deeply"


def _arguments(raw: Any) -> Mapping[str, Any] | str:
    """Return a JSON object, or the provider's text where it is none; the planning extractor judges it.

    Some SDKs that decode the arguments themselves let NaN and infinities pass.
    """
    text = _argument_text(raw)
    value = decoded(text)
    return value if isinstance(value, dict) else text


def _cost(response: ModelResponse) -> Decimal | None:
    """Return the price by genai-prices, or None when it knows no price for the model or no usage was reported."""
    if not (response.usage.input_tokens or response.usage.output_tokens):
        return None
    try:
        return response.cost().total_price
    except (LookupError, ValueError, AssertionError):
        return None

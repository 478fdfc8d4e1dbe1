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
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import httpx2
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, SystemPromptPart, TextPart, UserPromptPart
from pydantic_ai.messages import (
    ModelRequest as WireRequest,
)
from pydantic_ai.models import Model, ModelRequestParameters, create_async_httpx2_client
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.settings import ModelSettings as WireSettings
from pydantic_ai.tools import ToolDefinition as WireTool
from pydantic_ai.usage import RequestUsage

from shared.domain.errors import AuthFailed, Transient
from shared.domain.model_names import ModelName, Provider
from worker.llm.backend import Completion
from worker.llm.bounded import bound
from worker.llm.completion import completion_of, partial_of
from worker.llm.constrained import Unconstrained, constrained, opened, refuses_schema
from worker.llm.provider_errors import FOREIGN, translated
from worker.llm.remembered import Remembered
from worker.llm.request import ModelRequest
from worker.llm.settings import ModelSettings
from worker.llm.spent import Spent

_log = logging.getLogger("planq.llm")

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
GOOGLE_URL = "https://generativelanguage.googleapis.com"
NO_KEY = "no-key"
"""Sent to a compatible server that was configured without a key; the SDK refuses to send none."""

MakeModel = Callable[[str], Model]
_Client = tuple[MakeModel, httpx2.AsyncClient]

_SDK_MODULES = {
    Provider.OPENAI: ("pydantic_ai.models.openai", "pydantic_ai.providers.openai", "worker.llm.providers"),
    Provider.ANTHROPIC: ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic"),
    Provider.GOOGLE: ("pydantic_ai.models.google", "pydantic_ai.providers.google"),
}


_MODELS_KEPT = 64
"""How many models of a provider are kept; a request may name any."""

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


class Providers:
    """The clients of one process: per event loop and provider one connection pool, made at first use."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._open: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[Provider, bool], _Client]] = (
            WeakKeyDictionary()
        )
        self._cannot_stream: set[str] = set()
        self._unconstrained = Unconstrained()

    def prepare(self, name: ModelName) -> None:
        """Make what the first call to a model needs, on the running loop; raises `AuthFailed` without a key."""
        if name.provider is not None:
            self._maker(name.provider, is_stream=self._settings.stream)(name.model)

    async def complete(self, name: ModelName, request: ModelRequest, spent: Spent) -> Completion:
        """Send `request` once; raise an `ExecutionFailed` that says whether it may be sent again.

        A reply that breaks off is told to `spent`, also when the caller is cancelled; its connection is closed then.
        A server that refuses to stream is asked again for a whole reply, and from then on only for those; one that
        refuses an answer's schema is asked again in words.
        """
        provider = name.provider
        if provider is None:
            raise AssertionError(f"{name.full} is no provider's model")
        try:
            try:
                return await self._ask(provider, name, request, spent)
            except ModelHTTPError as error:
                if request.answer_schema is None or not refuses_schema(error):
                    raise
            completion = await self._ask(provider, name, request.in_words(), spent)
        except FOREIGN as error:
            raise translated(error, secret=self._settings.api_keys.get(provider, "")) from error
        self._unconstrained.add(name, request)
        return completion

    async def _ask(self, provider: Provider, name: ModelName, request: ModelRequest, spent: Spent) -> Completion:
        if not self._settings.stream or name.full in self._cannot_stream:
            return await self._ask_whole(provider, name, request)
        try:
            return await self._ask_stream(provider, name, request, spent)
        except ModelHTTPError as error:
            if not _refuses_to_stream(error):
                raise
        completion = await self._ask_whole(provider, name, request)
        self._cannot_stream.add(name.full)
        _log.warning("model_cannot_stream", extra={"model": name.full})
        return completion

    async def _ask_stream(
        self, provider: Provider, name: ModelName, request: ModelRequest, spent: Spent
    ) -> Completion:
        model = self._maker(provider, is_stream=True)(name.model)
        wire = self._wire(model, name, request)
        opened = model_request_stream(
            model,
            _messages(wire.request),
            model_settings=wire.settings,
            model_request_parameters=wire.parameters,
            instrument=False,
        )
        async with closing_replies(), opened as stream:
            try:
                async for _ in stream:
                    pass
                response = stream.get()
                _check_is_whole(response)
            except BaseException:
                broken = stream.get()
                spent.broke_off(completion_of(broken), partial_of(broken, request))
                raise
        if response.usage.unmeasured_requests:
            _log.warning("model_told_no_usage", extra={"model": name.model})
        return completion_of(response)

    async def _ask_whole(self, provider: Provider, name: ModelName, request: ModelRequest) -> Completion:
        model = self._maker(provider, is_stream=False)(name.model)
        wire = self._wire(model, name, request)
        response = await model_request(
            model,
            _messages(wire.request),
            model_settings=wire.settings,
            model_request_parameters=wire.parameters,
            instrument=False,
        )
        return completion_of(response)

    def _wire(self, model: Model, name: ModelName, request: ModelRequest) -> _Wire:
        """Put a request into the provider's terms; what it cannot be told otherwise stands in the instructions."""
        settings = self._wire_settings(model, request)
        if request.answer_schema is None:
            return _Wire(request, settings, _NO_TOOL if request.tool is None else _forcing(request.tool))
        parameters = None
        if not self._unconstrained.holds(name, request):
            parameters = constrained(model, name.provider, request.answer_schema, settings)
        if parameters is None:
            return _Wire(request.in_words(), settings, ModelRequestParameters())
        return _Wire(request, settings, parameters)

    async def aclose(self) -> None:
        """Close the running loop's connection pools; new ones are made if a call follows."""
        for _, client in self._open.pop(asyncio.get_running_loop(), {}).values():
            await client.aclose()

    def _maker(self, provider: Provider, *, is_stream: bool) -> MakeModel:
        opened = self._open.setdefault(asyncio.get_running_loop(), {})
        key = (provider, is_stream)
        if key not in opened:
            timeout = httpx2.Timeout(self._settings.request_timeout, connect=5)
            client = watch(bound(create_async_httpx2_client(timeout=timeout)))
            if is_stream and provider is Provider.OPENAI:
                accept_whole_replies(client)
            # Making a model means working out its profile, as long as a third of the whole call takes.
            make = lru_cache(maxsize=_MODELS_KEPT)(_remembering(_MAKERS[provider](self._settings, client)))
            opened[key] = (make, client)
        return opened[key][0]

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


def _openai(settings: ModelSettings, client: httpx2.AsyncClient) -> MakeModel:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from worker.llm.providers import CHAT_PROFILE, ChatModel

    base_url = settings.base_urls.get(Provider.OPENAI)
    key = settings.api_keys.get(Provider.OPENAI) or (NO_KEY if base_url else _missing_key(Provider.OPENAI))
    provider = OpenAIProvider(base_url=base_url or OPENAI_URL, api_key=key, http_client=client)
    responses = settings.openai_api == "responses" or (settings.openai_api == "auto" and base_url is None)
    if responses:
        return lambda name: OpenAIResponsesModel(name, provider=provider)
    return lambda name: ChatModel(name, provider=provider, profile=CHAT_PROFILE)


def _anthropic(settings: ModelSettings, client: httpx2.AsyncClient) -> MakeModel:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    provider = AnthropicProvider(
        base_url=settings.base_urls.get(Provider.ANTHROPIC, ANTHROPIC_URL),
        api_key=settings.api_keys.get(Provider.ANTHROPIC) or _missing_key(Provider.ANTHROPIC),
        http_client=client,
    )
    return lambda name: AnthropicModel(name, provider=provider)


def _google(settings: ModelSettings, client: httpx2.AsyncClient) -> MakeModel:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(
        base_url=settings.base_urls.get(Provider.GOOGLE, GOOGLE_URL),
        api_key=settings.api_keys.get(Provider.GOOGLE) or _missing_key(Provider.GOOGLE),
        http_client=client,
    )
    return lambda name: GoogleModel(name, provider=provider)


_MAKERS: Mapping[Provider, Callable[[ModelSettings, httpx2.AsyncClient], MakeModel]] = {
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


def _check_is_whole(response: ModelResponse) -> None:
    """Raise `Transient` when the stream ended without the event that every provider ends a reply with."""
    # pydantic-ai keeps a reason that it does not know among the details only.
    reason = response.finish_reason or (response.provider_details or {}).get("finish_reason")
    if response.state != "complete" or not reason:
        raise Transient("the model's reply broke off: its stream ended without saying why it ended")


def _messages(request: ModelRequest) -> list[ModelMessage]:
    """Return the conversation as pydantic-ai's messages: consecutive user texts share one request."""
    wire: list[ModelMessage] = []
    pending: list[Any] = [SystemPromptPart(content=_sendable(text)) for text in request.system]
    for message in request.messages:
        if message.role == "assistant":
            if pending:
                wire.append(WireRequest(parts=pending))
                pending = []
            wire.append(ModelResponse(parts=[TextPart(content=_sendable(message.content))]))
        else:
            pending.append(UserPromptPart(content=_sendable(message.content)))
    return [*wire, WireRequest(parts=pending)]


def _sendable(text: str) -> str:
    """Return `text` without lone surrogates, which JSON can bring in and UTF-8 cannot carry out."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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


_NO_TOOL = ModelRequestParameters()
_forcing = Remembered(_forced)
"""The same parameters for the same tool, by which models know again what they have put into their terms."""


def _remembering(make: MakeModel) -> MakeModel:
    """Return `make` for models that put a tool's schema into their provider's terms once, not for each call.

    pydantic-ai does so each time (2.68): for 25 tools that takes 4 ms, most of what a call takes here.
    """

    def made(name: str) -> Model:
        model = make(name)
        customized = Remembered(model.customize_request_parameters)

        def customize(model_request_parameters: ModelRequestParameters) -> ModelRequestParameters:
            if not model_request_parameters.output_tools:  # made for one call, and soon gone
                return customized.make(model_request_parameters)
            return customized(model_request_parameters)

        model.customize_request_parameters = customize  # type: ignore[method-assign]
        return model

    return made


CHAT_PROFILE = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)


@dataclass
class _Streamed(OpenAIStreamedResponse):
    def _add_usage(self, usage: RequestUsage, *, reported: bool, cumulative: bool = False) -> None:
        # Asked for with `include_usage`, it comes once, at the end; some servers (xAI, Perplexity) repeat it.
        if reported:
            super()._add_usage(usage, reported=True, cumulative=True)


class ChatModel(OpenAIChatModel):
    """An OpenAI-compatible server's model."""

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _Streamed


_replies: ContextVar[list[httpx2.Response] | None] = ContextVar("planq_replies", default=None)


def watch(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Let `closing_replies` know what `client` receives; returns the client."""

    async def received(response: httpx2.Response) -> None:
        replies = _replies.get()
        if replies is not None:
            replies.append(response)

    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks.get("response", []), received]}
    return client


@asynccontextmanager
async def closing_replies() -> AsyncIterator[None]:
    """Close what watched clients receive within the block, in this asyncio task, when the block ends."""
    replies: list[httpx2.Response] = []
    token = _replies.set(replies)
    try:
        yield
    finally:
        _replies.reset(token)
        for response in replies:
            if not response.is_closed:
                await asyncio.shield(response.aclose())


class _AsEvents(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner
        self._is_read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_read:
            return  # the SDK looks once more for what may follow the last event
        body = b"".join([piece async for piece in self._inner])
        self._is_read = True
        yield as_events(body)

    async def aclose(self) -> None:
        await self._inner.aclose()


def accept_whole_replies(client: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """Let JSON bodies that `client` receives be read as event streams; returns the client.

    Use it for a client that only asks for streams, and after `bounded.bound`: the body is kept in memory.
    """

    async def shown_as_stream(response: httpx2.Response) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.is_success and kind == "application/json":
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _AsEvents(response.stream)
            response.headers["content-type"] = "text/event-stream"

    hooks = client.event_hooks
    client.event_hooks = {**hooks, "response": [*hooks.get("response", []), shown_as_stream]}
    return client


def as_events(body: bytes) -> bytes:
    """Return a chat completion as the events of a stream that says all of it at once.

    What is no chat completion (an error object, say) becomes one event as it is, for the SDK to judge.
    """
    try:
        chunk = _chunk(json.loads(body))
    except (ValueError, RecursionError, TypeError, KeyError):
        return b"data: " + b" ".join(body.split()) + b"\n\n"
    return f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode("ascii")


def _chunk(completion: Mapping[str, Any]) -> dict[str, Any]:
    choices = [{**choice, "delta": _delta(choice["message"])} for choice in completion["choices"]]
    for choice in choices:
        del choice["message"]
    return {**completion, "object": "chat.completion.chunk", "choices": choices}


def _delta(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls") or []
    return {**message, "tool_calls": [{**call, "index": index} for index, call in enumerate(calls)]}

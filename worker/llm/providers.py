"""OpenAI, Anthropic, Google and OpenAI-compatible servers, through pydantic-ai's `direct` API (2.68).

Importing this module loads the SDKs; only the gateway does so, at the first call that needs one. The SDKs' own
retries are off (`max_retries` 0), and addresses and keys come from the settings, not from the SDKs' environment
variables.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any
from weakref import WeakKeyDictionary

import httpx2
from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.messages import (
    ModelRequest as WireRequest,
)
from pydantic_ai.models import Model, ModelRequestParameters, create_async_httpx2_client
from pydantic_ai.settings import ModelSettings as WireSettings
from pydantic_ai.tools import ToolDefinition as WireTool

from shared.domain.errors import AuthFailed
from shared.domain.model import ToolCallRequest
from shared.domain.model_names import ModelName, Provider
from shared.domain.planning import decoded
from worker.llm.backend import Completion
from worker.llm.bounded import bound
from worker.llm.provider_errors import FOREIGN, translated
from worker.llm.request import ModelRequest
from worker.llm.settings import ModelSettings

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
GOOGLE_URL = "https://generativelanguage.googleapis.com"
NO_KEY = "no-key"
"""Sent to a compatible server that was configured without a key; the SDK refuses to send none."""

_MOST_TOKENS = 2**31 - 1

MakeModel = Callable[[str], Model]


_SDK_MODULES = {
    Provider.OPENAI: ("pydantic_ai.models.openai", "pydantic_ai.providers.openai"),
    Provider.ANTHROPIC: ("pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic"),
    Provider.GOOGLE: ("pydantic_ai.models.google", "pydantic_ai.providers.google"),
}


def load_sdk(provider: Provider) -> None:
    """Import what speaks to `provider`; takes a second the first time, hence made for a thread of its own."""
    for module in _SDK_MODULES[provider]:
        importlib.import_module(module)


class Providers:
    """The clients of one process: per event loop and provider one connection pool, made at first use."""

    def __init__(self, settings: ModelSettings) -> None:
        self._settings = settings
        self._open: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[Provider, tuple[MakeModel, httpx2.AsyncClient]]
        ] = WeakKeyDictionary()

    async def complete(self, name: ModelName, request: ModelRequest) -> Completion:
        """Send `request` once; raise an `ExecutionFailed` that says whether it may be sent again."""
        provider = name.provider
        if provider is None:
            raise AssertionError(f"{name.full} is no provider's model")
        model = self._maker(provider)(name.model)
        try:
            response = await model_request(
                model,
                _messages(request),
                model_settings=self._wire_settings(model, request),
                model_request_parameters=_parameters(request),
                instrument=False,
            )
        except FOREIGN as error:
            raise translated(error, secret=self._settings.api_keys.get(provider, "")) from error
        return _completion(response)

    async def aclose(self) -> None:
        """Close the running loop's connection pools; new ones are made if a call follows."""
        for _, client in self._open.pop(asyncio.get_running_loop(), {}).values():
            await client.aclose()

    def _maker(self, provider: Provider) -> MakeModel:
        opened = self._open.setdefault(asyncio.get_running_loop(), {})
        if provider not in opened:
            timeout = httpx2.Timeout(self._settings.request_timeout, connect=5)
            client = bound(create_async_httpx2_client(timeout=timeout))
            opened[provider] = (_MAKERS[provider](self._settings, client), client)
        return opened[provider][0]

    def _wire_settings(self, model: Model, request: ModelRequest) -> WireSettings:
        timeout = self._settings.request_timeout
        # `timeout` bounds each read, `request_timeout` the whole attempt: a server that drips bytes ends too.
        wire = WireSettings(
            max_tokens=self._settings.max_output_tokens, max_retries=0, timeout=timeout, request_timeout=timeout
        )
        if self._settings.temperature is not None:
            wire["temperature"] = self._settings.temperature
        profile = model.profile
        forcible = profile.get("supports_forced_tool_choice", True)
        if request.tool and forcible and profile.get("supports_forced_tool_choice_with_thinking", True):
            # Where a model refuses to be forced, the tool still goes out as its only output, with choice "auto".
            wire["tool_choice"] = [str(request.tool["name"])]
        return wire


def _openai(settings: ModelSettings, client: httpx2.AsyncClient) -> MakeModel:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    base_url = settings.base_urls.get(Provider.OPENAI)
    key = settings.api_keys.get(Provider.OPENAI) or (NO_KEY if base_url else _missing_key(Provider.OPENAI))
    provider = OpenAIProvider(base_url=base_url or OPENAI_URL, api_key=key, http_client=client)
    responses = settings.openai_api == "responses" or (settings.openai_api == "auto" and base_url is None)
    return lambda name: (OpenAIResponsesModel if responses else OpenAIChatModel)(name, provider=provider)


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


def _parameters(request: ModelRequest) -> ModelRequestParameters:
    if request.tool is None:
        return ModelRequestParameters()
    tool = WireTool(
        name=str(request.tool["name"]),
        description=str(request.tool["description"]),
        parameters_json_schema=dict(request.tool["parameters"]),
        kind="output",
        # Providers' strict modes forbid the open objects that the arguments of tools are.
        strict=False,
    )
    return ModelRequestParameters(output_mode="tool", output_tools=[tool], allow_text_output=False)


def _completion(response: ModelResponse) -> Completion:
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    return Completion(
        text="\n\n".join(texts),
        tool_calls=[ToolCallRequest(call.tool_name, _arguments(call.args)) for call in calls],
        input_tokens=_count(response.usage.input_tokens),
        output_tokens=_count(response.usage.output_tokens),
        cost_usd=_cost(response),
        finish_reason=response.finish_reason,
    )


def _count(tokens: int) -> int:
    """Return a number of tokens that can be stored, whatever the server claims."""
    return min(max(tokens, 0), _MOST_TOKENS)


def _arguments(raw: Any) -> Mapping[str, Any] | str:
    """Return a JSON object, or the provider's text where it is none; the planning extractor judges it.

    Some SDKs decode the arguments themselves, and let NaN and infinities pass.
    """
    try:
        text = json.dumps(raw) if isinstance(raw, Mapping) else str(raw or "")
    except RecursionError:
        return "{… nested too deeply"
    value = decoded(text)
    return value if isinstance(value, dict) else text


def _cost(response: ModelResponse) -> Decimal | None:
    """Return the price by genai-prices, or None when it knows no price for the model or no usage was told."""
    if not (response.usage.input_tokens or response.usage.output_tokens):
        return None
    try:
        return response.cost().total_price
    except (LookupError, ValueError, AssertionError):
        return None

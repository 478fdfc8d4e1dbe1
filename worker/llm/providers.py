"""Calls of providers' models through pydantic-ai's `direct` API (2.68), and the reading of their replies.

Importing this module loads an SDK; only the gateway does so, at the first call that needs one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
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
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings as WireSettings

from planq.shared.domain.models.adaptations import Adaptation, adaptation_for
from planq.shared.domain.models.exchange import ToolCallRequest
from planq.shared.domain.models.names import ModelName, Provider
from planq.shared.domain.plan.interpret import decoded
from planq.shared.domain.redact import pattern_of, redacted
from planq.worker.llm.adapting import KnownAdaptations
from planq.worker.llm.circuits import UnreadableReply
from planq.worker.llm.clients import Models
from planq.worker.llm.completion import BrokenTryUsage, Completion
from planq.worker.llm.constrained import RefusedSchemas, constrained, is_about_parameter, refuses_schema
from planq.worker.llm.http_client import closing_replies
from planq.worker.llm.live import LiveCall
from planq.worker.llm.messages import state_of
from planq.worker.llm.provider_errors import FOREIGN, translated
from planq.worker.llm.request import ModelRequest
from planq.worker.llm.settings import ModelSettings
from planq.worker.llm.wire import Wire, wire_of
from planq.worker.llm.wire_names import WireNames

_log = logging.getLogger("planq.llm")


@dataclass(frozen=True, slots=True)
class _Call:
    """Whom a request is for: its model, the key of whoever asks, and who follows the reply."""

    provider: Provider
    name: ModelName
    key: str | None
    live: LiveCall | None


_MOST_REFUSALS = 8
"""Maximum number of refusals of one request that are answered by an adapted one."""


class Providers:
    """The calls of one process to its providers' models."""

    def __init__(self, settings: ModelSettings, known: KnownAdaptations) -> None:
        self._settings = settings
        self._models = Models(settings)
        self._known = known
        self._unconstrained = RefusedSchemas()

    def prepare(self, provider: Provider, default: ModelName) -> None:
        """Do what `Models.prepare` promises."""
        self._models.prepare(provider, default)

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
        A request of which the server refuses a part is sent again without that part, and what it took is remembered
        for the model at this base URL. One that refuses an answer's schema is asked again in words.
        """
        provider = name.provider
        if provider is None:
            raise AssertionError(f"{name.full} is no provider's model")
        try:
            return await self._adapted(_Call(provider, name, key, live), request, spent)
        except FOREIGN as error:
            raise translated(error, secret=key or self._settings.api_keys.get(provider, "")) from error

    async def _adapted(self, call: _Call, request: ModelRequest, spent: BrokenTryUsage) -> Completion:
        base_url = self._base_url(call)
        active = await self._known.of(base_url, call.name.model)
        refusals: dict[Adaptation, str] = {}
        refused_schema: ModelRequest | None = None
        while True:
            is_stream = self._settings.stream and Adaptation.WHOLE_REPLIES not in active
            model = self._models.model(call.provider, call.name.model, call.key, active, is_stream=is_stream)
            wire = self._wire(model, call.name, request, active)
            try:
                completion = await (self._ask_stream if is_stream else self._ask_whole)(model, wire, spent, call.live)
                break
            except ModelAPIError as error:
                words = self._words_of(error, call)
                status = error.status_code if isinstance(error, ModelHTTPError) else None
                if wire.request.answer_schema is not None and refuses_schema(error):
                    refused_schema, request = request, request.in_words()
                    if is_about_parameter(words):
                        refusals[Adaptation.SCHEMA_IN_WORDS] = words
                    continue
                adaptation = adaptation_for(status, words, wire.possible(model, is_stream=is_stream), active)
                if adaptation is None or len(refusals) >= _MOST_REFUSALS:
                    raise
                refusals[adaptation] = words
                active |= {adaptation}
        if refused_schema is not None:
            self._unconstrained.add(call.name, refused_schema)
        if refusals:
            await self._known.learn(base_url, call.name.model, refusals)
        return completion

    def _base_url(self, call: _Call) -> str:
        model = self._models.model(
            call.provider, call.name.model, call.key, frozenset(), is_stream=self._settings.stream
        )
        return redacted(model.base_url or call.provider.value)

    def _words_of(self, error: ModelAPIError, call: _Call) -> str:
        """Return what the server said, without the key."""
        body = error.body if isinstance(error, ModelHTTPError) else ""
        secret = call.key or self._settings.api_keys.get(call.provider, "")
        text = f"{error.message} {body or ''}"
        return redacted(pattern_of([secret]).sub("[API key]", text) if secret else text)

    async def _ask_stream(self, model: Model, wire: Wire, spent: BrokenTryUsage, live: LiveCall | None) -> Completion:
        if live is not None:
            live.try_anew()
        opened = model_request_stream(
            model,
            wire.messages,
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
                spent.broke_off(completion_of(broken), partial_of(broken, wire.request))
                raise
        if response.usage.unmeasured_requests:
            _log.warning("model_told_no_usage", extra={"model": model.model_name})
        return _reply_of(response, wire)

    async def _ask_whole(
        self, model: Model, wire: Wire, _spent: BrokenTryUsage, _live: LiveCall | None
    ) -> Completion:
        response = await model_request(
            model,
            wire.messages,
            model_settings=wire.settings,
            model_request_parameters=wire.parameters,
            instrument=False,
        )
        return _reply_of(response, wire)

    def _wire(self, model: Model, name: ModelName, request: ModelRequest, active: frozenset[Adaptation]) -> Wire:
        """Put a request into the provider's terms; an answer schema may have to go into the instructions."""
        settings = self._wire_settings(request)
        parameters = None
        if request.answer_schema is not None:
            if Adaptation.SCHEMA_IN_WORDS not in active and not self._unconstrained.holds(name, request):
                parameters = constrained(model, name.provider, request.answer_schema, settings)
            if parameters is None:
                request = request.in_words()
        return wire_of(model, request, settings, active, parameters)

    async def aclose(self) -> None:
        """Do what `Models.aclose` promises."""
        await self._models.aclose()

    def _wire_settings(self, request: ModelRequest) -> WireSettings:
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
        return wire


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


def _reply_of(response: ModelResponse, wire: Wire) -> Completion:
    """Return a whole reply, with the names of tools and properties as they were before they were put on the wire."""
    completion = completion_of(response)
    calls = [_own_call(call, wire.names) for call in completion.tool_calls]
    return replace(completion, tool_calls=calls, state=state_of(response))


def _own_call(call: ToolCallRequest, names: WireNames) -> ToolCallRequest:
    name = names.back(call.name)
    return replace(call, name=name, arguments=names.arguments_back(name, call.arguments))


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

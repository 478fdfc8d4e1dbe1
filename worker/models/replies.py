"""Replies in pydantic-ai's terms (2.68), read into ours; what its adapters get wrong is put right here.

`tolerant` repairs the pieces of OpenAI-compatible servers before pydantic-ai joins them. `completion_of` reads what
it made of any provider's reply.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from openai import APIError, AsyncStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall, ChoiceDeltaToolCallFunction
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)
from pydantic_ai.messages import (
    FilePart,
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
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.models.openai._errors import map_api_errors
from pydantic_ai.profiles.openai import OpenAIModelProfile

from planq.shared.agentic.models.ending import Incomplete, cut_off_by
from planq.shared.agentic.models.exchange import ToolCallRequest, TurnForm
from planq.shared.agentic.plan.forms import QUESTION_TYPES
from planq.shared.agentic.plan.interpret import DIRECT, PLANNING_TOOL_NAME, TOOL_CALLS, Direct, decision_in
from planq.shared.agentic.rounds.reading import interpret_turn
from planq.shared.platform.errors import UnreadableReply
from planq.shared.platform.values.media import media_type_of
from planq.shared.platform.values.parts import found_media_type
from planq.worker.models.completion import Completion, MadeFile
from planq.worker.models.live import LiveCall
from planq.worker.models.messages import state_of
from planq.worker.models.reading.calls import (
    CallOrder,
    CallPiece,
    argument_text,
    read_arguments,
    unmarked_calls,
    with_own_ids,
    written_calls,
)
from planq.worker.models.reading.faults import Fault, fault_in
from planq.worker.models.reading.texts import Kind, ReadText, TextReader, read_text
from planq.worker.models.request import ModelRequest
from planq.worker.models.wire_names import WireNames

_NO_TAGS = ("\x00thoughts", "\x00answer")
"""Marks that no text has: pydantic-ai finds a mark only where it is a chunk by itself, and `reading` finds all."""


def tolerant(model: Model) -> Model:
    """Return the model, which from now on reads what OpenAI-compatible servers send; other models are as before."""
    if not isinstance(model, OpenAIChatModel):
        return model
    streamed, whole = model._process_streamed_response, model._process_response

    async def process_stream(response: AsyncStream[ChatCompletionChunk], *args: Any) -> OpenAIStreamedResponse:
        parameters = args[0]
        known = {tool.name for tool in (*parameters.function_tools, *parameters.output_tools)}
        stream = await streamed(_Chunks(response, known), *args)  # type: ignore[arg-type]
        stream._model_profile = OpenAIModelProfile(**{**stream._model_profile, "thinking_tags": _NO_TAGS})
        return stream

    def process_whole(response: ChatCompletion | str, **options: Any) -> ModelResponse:
        if not isinstance(response, ChatCompletion):
            return whole(response, **options)
        fault = _fault_of(response)
        if fault is not None:
            with map_api_errors(model.model_name):  # as the same fault in a stream
                raise APIError(fault.message, request=None, body=fault.body)  # type: ignore[arg-type]
        text = _repair_whole(response)
        read = whole(response, **options)
        if text:
            place = sum(isinstance(part, ThinkingPart) for part in read.parts)
            parts = list(read.parts)
            parts.insert(place, TextPart(text))
            read.parts = parts
        return read

    model._process_streamed_response = process_stream  # type: ignore[method-assign, assignment]
    model._process_response = process_whole  # type: ignore[method-assign]
    return model


class _Chunks:
    """The chunks of a stream, repaired; raises the SDK's error for a chunk that reports a fault."""

    def __init__(self, source: AsyncStream[ChatCompletionChunk], known: set[str]) -> None:
        self._source = source
        self._chunks = aiter(source)
        self._order = CallOrder(known)

    async def close(self) -> None:
        await self._source.close()

    def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        return self

    async def __anext__(self) -> ChatCompletionChunk:
        chunk = await anext(self._chunks)
        self._repair(chunk)
        return chunk

    def _repair(self, chunk: ChatCompletionChunk) -> None:
        choice = chunk.choices[0] if chunk.choices else None
        may_report = choice is None or (choice.model_extra or {}).get("error") or chunk.model_extra
        if may_report and (fault := _fault_of(chunk)) is not None:
            raise APIError(fault.message, request=self._source.response.request, body=fault.body)
        delta = None if choice is None else choice.delta
        if delta is None:
            return
        if delta.function_call is not None and not delta.tool_calls:
            old = delta.function_call
            function = ChoiceDeltaToolCallFunction.construct(name=old.name, arguments=old.arguments)
            delta.tool_calls = [ChoiceDeltaToolCall.construct(index=0, function=function)]
        for call in delta.tool_calls or ():
            written = call.function
            placed = self._order.place(
                CallPiece(
                    call.index if isinstance(call.index, int) else None,
                    str(call.id or ""),
                    str((written and written.name) or ""),
                    argument_text(None if written is None else written.arguments),
                )
            )
            call.index, call.id = placed.index or 0, placed.id or None
            call.function = ChoiceDeltaToolCallFunction.construct(
                name=placed.name or None, arguments=placed.arguments
            )


def _fault_of(response: ChatCompletion | ChatCompletionChunk) -> Fault | None:
    choice = response.choices[0] if response.choices else None
    beside = {} if choice is None else getattr(choice, "model_extra", None) or {}
    return fault_in({**beside, **(response.model_extra or {})}, has_choice=choice is not None)


def _repair_whole(response: ChatCompletion) -> str:
    """Put a whole reply into the form that is checked next; returns its text, taken out of it, where it has marks."""
    message = getattr(response.choices[0], "message", None) if response.choices else None
    if message is None:
        return ""
    old = message.function_call
    if old is not None and not message.tool_calls:
        function = Function.construct(name=old.name, arguments=old.arguments)
        message.tool_calls = [ChatCompletionMessageFunctionToolCall.construct(id="", function=function)]
        message.function_call = None
    calls = [_whole_call(call) for call in message.tool_calls or ()]
    message.tool_calls = calls or None
    text = message.content
    if not isinstance(text, str) or not text or read_text(text).answer == text:
        return ""
    message.content = None
    return text


def _whole_call(call: Any) -> ChatCompletionMessageFunctionToolCall:
    function = getattr(call, "function", None)
    name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
    extra: dict[str, Any] = getattr(call, "model_extra", None) or {}
    return ChatCompletionMessageFunctionToolCall.construct(
        id=str(getattr(call, "id", None) or ""),
        type="function",
        function=Function.construct(name=str(name or ""), arguments=argument_text(arguments)),
        **extra,
    )


class LiveReader:
    """Hands what people may read of a reply on to those who follow, while it comes."""

    def __init__(self, live: LiveCall, names: WireNames) -> None:
        self._live = live
        self._names = names
        self._readers: dict[int, TextReader] = {}

    def take(self, event: ModelResponseStreamEvent) -> None:
        if isinstance(event, PartDeltaEvent):
            if isinstance(event.delta, TextPartDelta):
                self._read(event.index, event.delta.content_delta)
            elif isinstance(event.delta, ToolCallPartDelta) and isinstance(event.delta.args_delta, str):
                self._live.add(event.index, event.delta.args_delta)
        elif isinstance(event, PartStartEvent):
            if isinstance(event.part, TextPart):
                self._live.begin(event.index)
                self._readers[event.index] = TextReader()
                self._read(event.index, event.part.content)
            elif isinstance(event.part, ToolCallPart):
                self._live.begin(event.index, self._names.back(event.part.tool_name))
                self._live.add(event.index, argument_text(event.part.args))

    def end(self) -> None:
        """Hand on what is certain only now that the reply is over."""
        for index, reader in self._readers.items():
            self._show(index, reader.end())

    def _read(self, index: int, piece: str) -> None:
        if piece:
            self._show(index, self._readers[index].feed(piece))

    def _show(self, index: int, parts: Sequence[Any]) -> None:
        for kind, text in parts:
            if kind is Kind.ANSWER:
                self._live.add(index, text)
            elif kind is Kind.RECALL:
                self._live.begin(index)


def check_is_whole(response: ModelResponse) -> None:
    """Raise `UnreadableReply` for a reply whose provider failed in the middle, or that ended without its end."""
    # pydantic-ai keeps a reason that it does not know among the details only.
    details = response.provider_details or {}
    reason = details.get("finish_reason")
    if response.finish_reason == "error" or reason == "error":
        raise UnreadableReply(f"the provider ended the reply with an error (finish reason: {reason or 'error'})")
    if response.state == "incomplete" or not (response.finish_reason or reason):
        raise UnreadableReply("the model's reply broke off: its stream ended without saying why it ended")


def completion_of(
    response: ModelResponse, names: WireNames | None = None, request: ModelRequest | None = None
) -> Completion:
    """Return a reply with planq's own names; calls written as text count if tools were offered."""
    texts = [part for part in response.parts if isinstance(part, TextPart)]
    read = [read_text(part.content) for part in texts]
    told = [part.content for part in response.parts if isinstance(part, ThinkingPart) and part.content]
    calls = [
        ToolCallRequest(part.tool_name, read_arguments(part.args), part.tool_call_id)
        for part in response.parts
        if isinstance(part, ToolCallPart)
    ]
    answers = [one.answer for one in read]
    if not calls:
        calls, answers = _written(read, answers, request)
    if not calls and names is not None and names.has_others and request is not None and request.offered:
        answers = [_own_decision(answer, names, request) for answer in answers]
    return Completion(
        text="\n\n".join(answer for answer in answers if answer or len(answers) == 1),
        tool_calls=with_own_ids(calls if names is None else [_own_call(call, names) for call in calls]),
        input_tokens=_count(response.usage.input_tokens),
        output_tokens=_count(response.usage.output_tokens),
        cost_usd=_cost(response),
        finish_reason=response.finish_reason,
        incomplete=_incomplete(response),
        state=None if names is None else state_of(_with_texts(response, answers)),
        thoughts="\n\n".join([*told, *(one.thoughts for one in read if one.thoughts)]),
        cache_read_tokens=_count(response.usage.cache_read_tokens),
        cache_write_tokens=_count(response.usage.cache_write_tokens),
        files=_files(response),
    )


def _files(response: ModelResponse) -> list[MadeFile]:
    found = [part.content for part in response.parts if isinstance(part, FilePart) and part.has_content()]
    # pydantic-ai makes `image/None` of a picture whose server does not say its format.
    named = [MadeFile(found_media_type(one.data) or media_type_of(one.media_type), one.data) for one in found]
    return list(dict.fromkeys(named))


def answer_of_turn(said: Completion, request: ModelRequest) -> Completion | None:
    """Return the answer in a reply to `ModelRequest.as_turn`; None where it calls tools instead, or says nothing."""
    turn = interpret_turn(said.text, said.tool_calls, TurnForm.REACT if request.tool is None else TurnForm.LOOP)
    if not isinstance(turn, Direct):
        return None
    return replace(said, text=turn.content, tool_calls=(), state=None, asked=request)


def _incomplete(response: ModelResponse) -> Incomplete | None:
    details = response.provider_details or {}
    own = details.get("finish_reason") or details.get("block_reason")
    said = details.get("refusal") or details.get("block_reason_message")
    return cut_off_by(
        None if own is None else str(own), response.finish_reason, said if isinstance(said, str) else ""
    )


def _own_call(call: ToolCallRequest, names: WireNames) -> ToolCallRequest:
    name = names.back(call.name)
    return replace(call, name=name, arguments=names.arguments_back(name, call.arguments))


def _own_decision(text: str, names: WireNames, request: ModelRequest) -> str:
    """Return a text whose plan, if any, has planq's own names; if a name changes, only the plan is left."""
    found = decision_in(text, _DECISIONS)
    if not isinstance(found, Mapping):
        return text
    own: Any = names.arguments_back(PLANNING_TOOL_NAME, found)
    if request.tool is None and isinstance(calls := found.get("calls"), list):
        own = {**found, "calls": [_own_planned(call, names) for call in calls]}
    return text if own == found else json.dumps(own, ensure_ascii=False)


_DECISIONS = (DIRECT, TOOL_CALLS, *QUESTION_TYPES)


def _own_planned(call: Any, names: WireNames) -> Any:
    if not isinstance(call, Mapping) or not isinstance(call.get("tool_name"), str):
        return call
    name = names.back(call["tool_name"])
    return {**call, "tool_name": name, "arguments": names.arguments_back(name, call.get("arguments", {}))}


def _written(
    read: Sequence[ReadText], answers: list[str], request: ModelRequest | None
) -> tuple[list[ToolCallRequest], list[str]]:
    calls = written_calls([call for one in read for call in one.calls])
    offered = () if request is None else request.names
    if calls and (offered or not any(answer.strip() for answer in answers)):
        return calls, answers
    answers = [one.with_calls if one.calls else one.answer for one in read]
    if offered and len(answers) == 1:
        unmarked = unmarked_calls(answers[0], lambda name: name in offered)
        if unmarked:
            return unmarked, [""]
    return [], answers


def _with_texts(response: ModelResponse, answers: Sequence[str]) -> ModelResponse:
    rest = iter(answers)
    parts = [replace(part, content=next(rest)) if isinstance(part, TextPart) else part for part in response.parts]
    return replace(response, parts=parts)


def partial_of(response: ModelResponse, request: ModelRequest) -> Completion:
    """Return the received part of a reply, with its reported tokens or the estimate, whichever is higher."""
    reported = response.usage
    asked = reported.input_tokens or _estimated(json.dumps(request.to_json(), ensure_ascii=False))
    said = max(reported.output_tokens, _estimated("".join(_received(response))))
    usage = replace(reported, input_tokens=asked, output_tokens=said, unmeasured_requests=0)
    return completion_of(replace(response, usage=usage))


_MOST_TOKENS = 2**31 - 1

_BYTES_PER_TOKEN = 4
"""A rule of thumb of the providers for English text (https://platform.openai.com/tokenizer); JSON and other languages
have fewer. Only used where a broken stream reported nothing."""


def _received(response: ModelResponse) -> list[str]:
    texts = [part.content for part in response.parts if isinstance(part, (TextPart, ThinkingPart))]
    calls = [part.args for part in response.parts if isinstance(part, ToolCallPart)]
    return texts + [args if isinstance(args, str) else json.dumps(args or "") for args in calls]


def _estimated(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def _count(tokens: int) -> int:
    return min(max(tokens, 0), _MOST_TOKENS)


def _cost(response: ModelResponse) -> Decimal | None:
    """Return the price by genai-prices, or None when it knows no price for the model or no usage was reported."""
    if not (response.usage.input_tokens or response.usage.output_tokens):
        return None
    try:
        return response.cost().total_price
    except (LookupError, ValueError, AssertionError):
        return None

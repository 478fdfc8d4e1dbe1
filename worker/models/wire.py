"""A request in a provider's terms, with the changes that its server is known to need."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from pydantic_ai.messages import ModelRequest as WireMessages
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.settings import ModelSettings as WireSettings
from pydantic_ai.tools import ToolDefinition as WireTool

from planq.shared.agentic.models.adaptations import Adaptation
from planq.worker.models.identity_cache import IdentityCache
from planq.worker.models.messages import RESPONSES, wire_messages
from planq.worker.models.request import ModelRequest, OfferedForm, has_artifacts
from planq.worker.models.wire_names import WireNames, foreign_properties

_SETTING = {
    Adaptation.NO_TEMPERATURE: "temperature",
    Adaptation.NO_TOP_P: "top_p",
    Adaptation.NO_SEED: "seed",
    Adaptation.NO_STOP: "stop_sequences",
    Adaptation.NO_SERVICE_TIER: "service_tier",
    Adaptation.NO_THINKING: "thinking",
    Adaptation.NO_PARALLEL_TOOL_CALLS: "parallel_tool_calls",
    Adaptation.NO_CACHE: "cache",
}
"""The setting that an adaptation leaves out."""

_OF_SCHEMAS = frozenset({Adaptation.INLINE_REFS, Adaptation.PLAIN_SCHEMAS, Adaptation.PLAIN_PROPERTIES})

_STRICT_NAMES = ("anthropic", "bedrock")
"""Systems that refuse properties' names by a pattern; of the others it is learned."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A request in a provider's terms; `adaptations` are those it was made with."""

    request: ModelRequest
    messages: list[ModelMessage]
    settings: WireSettings
    parameters: ModelRequestParameters
    names: WireNames
    adaptations: frozenset[Adaptation]

    def possible(self, model: Model, *, is_stream: bool) -> frozenset[Adaptation]:
        return frozenset(self._possible(model, is_stream=is_stream)) - self.adaptations

    def _possible(self, model: Model, *, is_stream: bool) -> Iterator[Adaptation]:
        request = self.request
        tools = request.offered
        if tools:
            yield from (Adaptation.TOOLS_IN_WORDS, Adaptation.PLAIN_SCHEMAS)
            if request.tool is not None:
                yield Adaptation.UNFORCED_TOOL
            if any("$ref" in json.dumps(tool["parameters"]) for tool in tools):
                yield Adaptation.INLINE_REFS
            if any(any(foreign_properties(tool["parameters"])) for tool in tools):
                yield Adaptation.PLAIN_PROPERTIES
        if has_artifacts(request):
            yield Adaptation.NO_ARTIFACTS
        if request.system:
            yield Adaptation.SYSTEM_AS_USER
        if _has_text_after_results(self.messages):
            yield Adaptation.REPLY_AFTER_RESULTS
        if is_stream:
            yield Adaptation.WHOLE_REPLIES
        if isinstance(model, OpenAIChatModel):
            yield from (Adaptation.MAX_TOKENS, Adaptation.MAX_COMPLETION_TOKENS)
            if is_stream:
                yield Adaptation.NO_STREAM_OPTIONS
        if isinstance(model, (OpenAIChatModel, OpenAIResponsesModel)):
            yield Adaptation.NO_STRICT
        yield from (adaptation for adaptation, setting in _SETTING.items() if setting in self.settings)


def wire_of(
    model: Model,
    request: ModelRequest,
    settings: WireSettings,
    adaptations: frozenset[Adaptation],
    parameters: ModelRequestParameters | None = None,
) -> Wire:
    """Put a request into a provider's terms; `parameters` hold the model to an answer's schema, if they are given."""
    if model.system in _STRICT_NAMES:
        adaptations |= {Adaptation.PLAIN_PROPERTIES}
    if not model.profile.get("supports_tools", True):  # such as Google's models that make images
        adaptations |= {Adaptation.TOOLS_IN_WORDS}
    if Adaptation.TOOLS_IN_WORDS in adaptations:
        request = request.with_tools_in_words()
    for adaptation in adaptations:
        settings.pop(_SETTING.get(adaptation, ""), None)  # type: ignore[misc]
    names = _NO_NAMES
    if parameters is None:
        offer = _offers(request.offered, adaptations)
        parameters, names = offer.parameters, offer.names
        if request.tool is not None:
            parameters = offer.unforced if Adaptation.UNFORCED_TOOL in adaptations else offer.forced
            if _can_force(model) and Adaptation.UNFORCED_TOOL not in adaptations:
                # Where a model cannot be forced, the tool still goes out as its only output, with choice "auto".
                settings["tool_choice"] = [names.out(str(request.tool["name"]))]
    return Wire(
        request, wire_messages(request, names, adaptations, _reader(model)), settings, parameters, names, adaptations
    )


def _reader(model: Model) -> str:
    return RESPONSES if isinstance(model, OpenAIResponsesModel) else model.system


def _can_force(model: Model) -> bool:
    profile = model.profile
    return profile.get("supports_forced_tool_choice", True) and profile.get(
        "supports_forced_tool_choice_with_thinking", True
    )


class _Offer:
    """Tools that a model may call, in the provider's terms: as functions, as outputs, and as outputs it must use."""

    def __init__(self, tools: Sequence[OfferedForm], adaptations: Collection[Adaptation]) -> None:
        self.names = WireNames(tools, adaptations)
        wire = [
            WireTool(
                name=self.names.out(str(tool["name"])),
                description=str(tool["description"]),
                parameters_json_schema=self.names.schema(str(tool["name"])),
                # Providers' strict modes forbid the open objects that the arguments of tools are.
                strict=False,
            )
            for tool in tools
        ]
        self.parameters = ModelRequestParameters(function_tools=wire)
        outputs = [replace(tool, kind="output") for tool in wire]
        self.forced = ModelRequestParameters(output_mode="tool", output_tools=outputs, allow_text_output=False)
        self.unforced = ModelRequestParameters(output_mode="tool", output_tools=outputs, allow_text_output=True)


_NO_NAMES = WireNames(())
_by_form: dict[frozenset[Adaptation], IdentityCache[Sequence[OfferedForm], _Offer]] = {}


def _offers(tools: Sequence[OfferedForm], adaptations: frozenset[Adaptation]) -> _Offer:
    """Return the same parameters for the same tools, so that the models' caches by identity find them."""
    form = adaptations & _OF_SCHEMAS
    offered = _by_form.get(form)
    if offered is None:
        offered = IdentityCache(lambda of: _Offer(of, form), parts=lambda of: of)
        _by_form[form] = offered
    return offered(tools)


def _has_text_after_results(messages: Sequence[ModelMessage]) -> bool:
    for message in messages:
        if isinstance(message, WireMessages):
            kinds = [type(part) for part in message.parts]
            if ToolReturnPart in kinds and UserPromptPart in kinds:
                return True
    return False

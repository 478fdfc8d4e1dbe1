"""Which part of a request a model's server refuses, by the words of the refusal, and what to send instead.

The words are from real refusals. A wrong match costs one request: only an accepted adaptation is remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Adaptation(StrEnum):
    """One change to the requests for a model; the value is its name in the database and in `planq models`."""

    UNFORCED_TOOL = "unforced_tool"
    TOOLS_IN_WORDS = "tools_in_words"
    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    NO_PARALLEL_TOOL_CALLS = "no_parallel_tool_calls"
    NO_STRICT = "no_strict"
    INLINE_REFS = "inline_refs"
    PLAIN_SCHEMAS = "plain_schemas"
    PLAIN_PROPERTIES = "plain_properties"
    SYSTEM_AS_USER = "system_as_user"
    REPLY_AFTER_RESULTS = "reply_after_results"
    SCHEMA_IN_WORDS = "schema_in_words"
    WHOLE_REPLIES = "whole_replies"
    NO_STREAM_OPTIONS = "no_stream_options"
    NO_TEMPERATURE = "no_temperature"
    NO_TOP_P = "no_top_p"
    NO_SEED = "no_seed"
    NO_STOP = "no_stop"
    NO_SERVICE_TIER = "no_service_tier"
    NO_THINKING = "no_thinking"
    NO_CACHE = "no_cache"
    NO_ARTIFACTS = "no_artifacts"


MEANING = {
    Adaptation.UNFORCED_TOOL: "the tool is offered, and not forced",
    Adaptation.TOOLS_IN_WORDS: "tools are described in the instructions",
    Adaptation.MAX_TOKENS: "the limit of the reply is sent as `max_tokens`",
    Adaptation.MAX_COMPLETION_TOKENS: "the limit of the reply is sent as `max_completion_tokens`",
    Adaptation.NO_PARALLEL_TOOL_CALLS: "`parallel_tool_calls` is left out",
    Adaptation.NO_STRICT: "`strict` is left out of tools",
    Adaptation.INLINE_REFS: "each `$ref` of a schema is replaced by what it refers to",
    Adaptation.PLAIN_SCHEMAS: "schemas have only the keywords that every provider takes",
    Adaptation.PLAIN_PROPERTIES: "properties of tools get names of ASCII letters, digits, `_`, `-` and `.`",
    Adaptation.SYSTEM_AS_USER: "the system message is sent at the beginning of the first user message",
    Adaptation.REPLY_AFTER_RESULTS: "a short reply follows the results of tools before the next user message",
    Adaptation.SCHEMA_IN_WORDS: "the answer's schema is sent in the instructions",
    Adaptation.WHOLE_REPLIES: "replies are not streamed",
    Adaptation.NO_STREAM_OPTIONS: "`stream_options` is left out, so the tokens of a stream may be unknown",
    Adaptation.NO_TEMPERATURE: "`temperature` is left out",
    Adaptation.NO_TOP_P: "`top_p` is left out",
    Adaptation.NO_SEED: "`seed` is left out",
    Adaptation.NO_STOP: "`stop` is left out",
    Adaptation.NO_SERVICE_TIER: "`service_tier` is left out",
    Adaptation.NO_THINKING: "the wish for thinking is left out",
    Adaptation.NO_CACHE: "prompts are sent without marks for the prompt cache",
    Adaptation.NO_ARTIFACTS: "images, files and audio that tools have made are only named",
}
"""What planq sends instead, for people."""

REFUSING_STATUS = frozenset({400, 404, 405, 415, 422, 500, 501})
"""Statuses of a refusal; llama.cpp and SGLang answer 500 if a template raises an error."""

_NOT_OF_FAULTS = frozenset({Adaptation.WHOLE_REPLIES})
"""Not tried after a 500 or a fault inside a stream, whose message may name the broken stream."""

_MAX_CHARS = 8_000
"""Maximum length of the searched text: a refusal may repeat the whole request."""

_REFUSED = (
    "not support",
    "n't support",
    "unsupported",
    "not permitted",
    "extra_forbidden",
    "not allowed",
    "unrecognized",
    "unknown",
    "unexpected",
    "cannot find field",
    "not available",
    "unavailable",
    "not valid",
    "not a valid",
    "invalid",
    "deprecated",
    "not implemented",
    "must be",
    "may only be",
    "only the default",
    "requires",
    "cannot be specified",
)
"""Words for a refusal."""


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """A refusal whose text has all of `words` and one of `_REFUSED`, or all of `words` alone if they `suffice`."""

    adaptation: Adaptation
    words: Sequence[str]
    suffice: bool = False

    def fits(self, text: str) -> bool:
        return all(word in text for word in self.words) and (self.suffice or any(word in text for word in _REFUSED))


_A = Adaptation

REFUSALS: tuple[RefusalRow, ...] = (
    # Images, files and audio that tools have made.
    RefusalRow(_A.NO_ARTIFACTS, ("image",)),  # vLLM, llama.cpp, DeepSeek
    RefusalRow(_A.NO_ARTIFACTS, ("support image input",), suffice=True),  # OpenRouter
    RefusalRow(_A.NO_ARTIFACTS, ("audio",)),  # OpenAI
    RefusalRow(_A.NO_ARTIFACTS, ("multimodal",)),  # vLLM
    RefusalRow(_A.NO_ARTIFACTS, ("expected a string",), suffice=True),  # servers whose content is no list
    # Tools. A model without tools comes first: its refusal may name `tool_choice` too.
    RefusalRow(_A.TOOLS_IN_WORDS, ("does not support tools",), suffice=True),  # Ollama
    RefusalRow(_A.TOOLS_IN_WORDS, ("that support tool use",), suffice=True),  # OpenRouter
    RefusalRow(_A.TOOLS_IN_WORDS, ("--enable-auto-tool-choice",), suffice=True),  # vLLM
    RefusalRow(_A.TOOLS_IN_WORDS, ("function calling is not",), suffice=True),  # Google, Together
    RefusalRow(_A.TOOLS_IN_WORDS, ("not support function calling",), suffice=True),  # DeepSeek, SiliconFlow
    RefusalRow(_A.TOOLS_IN_WORDS, ("n't support tool use",), suffice=True),  # Bedrock
    RefusalRow(_A.TOOLS_IN_WORDS, ("tool calling is not supported",), suffice=True),  # Groq
    RefusalRow(_A.UNFORCED_TOOL, ("tool_choice",)),  # DeepSeek, Qwen, Kimi, LM Studio
    RefusalRow(_A.UNFORCED_TOOL, ("tool choice",)),  # LiteLLM, vLLM, Ollama's proxies
    RefusalRow(_A.UNFORCED_TOOL, ("toolchoice",)),  # Bedrock
    RefusalRow(_A.UNFORCED_TOOL, ("thinking may not be enabled when",), suffice=True),  # Anthropic
    RefusalRow(_A.UNFORCED_TOOL, ("functioncallingconfig",)),  # Google
    RefusalRow(_A.NO_PARALLEL_TOOL_CALLS, ("parallel_tool_calls",)),  # OpenAI's o-series
    RefusalRow(_A.NO_PARALLEL_TOOL_CALLS, ("parallel tool",)),  # Groq, Databricks
    RefusalRow(_A.NO_PARALLEL_TOOL_CALLS, ("disable_parallel_tool_use",)),  # Anthropic's gateways
    # How long a reply may be.
    RefusalRow(_A.MAX_COMPLETION_TOKENS, ("max_tokens", "max_completion_tokens", "instead")),  # OpenAI's o-series
    RefusalRow(_A.MAX_TOKENS, ("max_completion_tokens",)),  # Mistral, Azure AI Foundry
    RefusalRow(_A.MAX_COMPLETION_TOKENS, ("'max_tokens' is not supported",), suffice=True),
    # Streams.
    RefusalRow(_A.NO_STREAM_OPTIONS, ("stream_options",)),
    RefusalRow(_A.NO_STREAM_OPTIONS, ("stream options",)),
    RefusalRow(_A.NO_STREAM_OPTIONS, ("include_usage",)),
    RefusalRow(_A.WHOLE_REPLIES, ("stream",)),
    # Names and schemas.
    RefusalRow(_A.PLAIN_PROPERTIES, ("property keys should match",), suffice=True),  # Anthropic, Bedrock
    RefusalRow(_A.PLAIN_PROPERTIES, ("property name",)),
    RefusalRow(_A.INLINE_REFS, ("$ref",)),  # Kimi, Google
    RefusalRow(_A.INLINE_REFS, ("$defs",)),
    RefusalRow(_A.INLINE_REFS, ("schema.ref was set",), suffice=True),  # Google
    RefusalRow(_A.INLINE_REFS, ("references must start with",), suffice=True),  # Kimi
    RefusalRow(_A.SCHEMA_IN_WORDS, ("response_format",)),  # DeepSeek, LM Studio
    RefusalRow(_A.SCHEMA_IN_WORDS, ("output_config",)),  # Anthropic's gateways
    RefusalRow(_A.SCHEMA_IN_WORDS, ("output_format",)),
    RefusalRow(_A.SCHEMA_IN_WORDS, ("text.format",)),
    RefusalRow(_A.SCHEMA_IN_WORDS, ("response_schema",)),  # Google
    RefusalRow(_A.SCHEMA_IN_WORDS, ("structured output",)),
    RefusalRow(_A.SCHEMA_IN_WORDS, ("json mode",)),
    RefusalRow(_A.SCHEMA_IN_WORDS, ("grammar",)),
    RefusalRow(_A.NO_STRICT, ("strict",)),
    RefusalRow(_A.PLAIN_SCHEMAS, ("input_schema",)),  # Anthropic
    RefusalRow(_A.PLAIN_SCHEMAS, ("function_declarations",)),  # Google
    RefusalRow(_A.PLAIN_SCHEMAS, ("parameters", "schema")),  # OpenAI, Kimi
    # Roles.
    RefusalRow(_A.REPLY_AFTER_RESULTS, ("unexpected role 'user' after role 'tool'",), suffice=True),  # Mistral
    RefusalRow(_A.REPLY_AFTER_RESULTS, ("after role 'tool'",), suffice=True),
    RefusalRow(_A.SYSTEM_AS_USER, ("system role not supported",), suffice=True),  # Gemma
    RefusalRow(_A.SYSTEM_AS_USER, ("system role is not supported",), suffice=True),
    RefusalRow(_A.SYSTEM_AS_USER, ("system message",)),
    RefusalRow(_A.SYSTEM_AS_USER, ("developer instruction is not enabled",), suffice=True),  # Google's Gemma
    RefusalRow(_A.SYSTEM_AS_USER, ("role", "'system'")),
    # Parameters.
    RefusalRow(_A.NO_CACHE, ("cache_control",)),  # Anthropic's and OpenRouter's gateways
    RefusalRow(_A.NO_CACHE, ("cachepoint",)),  # Bedrock
    RefusalRow(_A.NO_CACHE, ("prompt_cache",)),  # OpenAI-compatible gateways
    RefusalRow(_A.NO_TEMPERATURE, ("temperature",)),  # OpenAI's and Anthropic's thinking models
    RefusalRow(_A.NO_TOP_P, ("top_p",)),
    RefusalRow(_A.NO_SERVICE_TIER, ("service_tier",)),
    RefusalRow(_A.NO_THINKING, ("reasoning_effort",)),
    RefusalRow(_A.NO_THINKING, ("reasoning.effort",)),
    RefusalRow(_A.NO_THINKING, ("thinking",)),
    RefusalRow(_A.NO_SEED, ("seed",)),
    RefusalRow(_A.NO_STOP, ("'stop'",)),
    RefusalRow(_A.NO_STOP, ("stop_sequences",)),
)
"""The first row that fits and is not yet active counts."""


def adaptation_for(
    status: int | None, text: str, possible: Collection[Adaptation], active: Collection[Adaptation] = ()
) -> Adaptation | None:
    """Return how to resend a refused request, None if no row would change it.

    `possible` adaptations change this request, `active` ones are in it. `status` None: refused inside a stream.
    """
    if status is not None and status not in REFUSING_STATUS:
        return None
    shown = text[:_MAX_CHARS].lower().replace("upstream", "")
    away = _NOT_OF_FAULTS if status in (None, 500) else frozenset()
    for row in REFUSALS:
        if row.adaptation in possible and row.adaptation not in {*active, *away} and row.fits(shown):
            return row.adaptation
    return None


def known_adaptations(names: Collection[str]) -> frozenset[Adaptation]:
    """Return the adaptations with these names; unknown names (of another version) are left out."""
    return frozenset(Adaptation(name) for name in names if name in set(Adaptation))

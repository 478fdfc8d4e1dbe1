"""Refusals of real servers, in their words, and what is done about each."""

from __future__ import annotations

import pytest

from planq.shared.agentic.models.adaptations import MEANING, REFUSALS, Adaptation, adaptation_for, known_adaptations

A = Adaptation
REAL = [
    # (status, the server's words, what is done)
    (400, "Thinking mode does not support this tool_choice", A.UNFORCED_TOOL),
    (
        400,
        "<400> InternalError.Algo.InvalidParameter: The tool_choice parameter does not support being set to required "
        "or object in thinking mode",
        A.UNFORCED_TOOL,
    ),
    (400, "tool_choice 'specified' is incompatible with thinking enabled: not supported", A.UNFORCED_TOOL),
    (400, "Invalid tool_choice type: 'object'. Supported string values: none, auto, required", A.UNFORCED_TOOL),
    (400, "Tool choice must be auto", A.UNFORCED_TOOL),
    (400, "This model doesn't support the toolConfig.toolChoice.any field.", A.UNFORCED_TOOL),
    (400, "Thinking may not be enabled when tool_choice forces tool use.", A.UNFORCED_TOOL),
    (400, "Please set allowed_function_names only when function calling mode is ANY: functionCallingConfig", None),
    (400, "Unsupported field: functionCallingConfig", A.UNFORCED_TOOL),
    (400, "registry.ollama.ai/library/dolphin-mistral:latest does not support tools", A.TOOLS_IN_WORDS),
    (404, "No endpoints found that support tool use. Try disabling 'question'.", A.TOOLS_IN_WORDS),
    (
        400,
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        A.TOOLS_IN_WORDS,
    ),
    (400, "Function calling is not enabled for models/gemma-3-27b-it", A.TOOLS_IN_WORDS),
    (400, "deepseek-reasoner does not support Function Calling", A.TOOLS_IN_WORDS),
    (400, "This model doesn't support tool use.", A.TOOLS_IN_WORDS),
    (400, "`tool calling` is not supported with this model", None),
    (400, "tool calling is not supported with this model", A.TOOLS_IN_WORDS),
    (
        400,
        "Unsupported parameter: 'parallel_tool_calls' is not supported with this model.",
        A.NO_PARALLEL_TOOL_CALLS,
    ),
    (400, "Parallel tool calls are not supported", A.NO_PARALLEL_TOOL_CALLS),
    (400, "tool_choice.disable_parallel_tool_use: Extra inputs are not permitted", A.UNFORCED_TOOL),
    (400, "disable_parallel_tool_use: Extra inputs are not permitted", A.NO_PARALLEL_TOOL_CALLS),
    (
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        A.MAX_COMPLETION_TOKENS,
    ),
    (400, "Unrecognized request argument supplied: max_completion_tokens", A.MAX_TOKENS),
    (
        422,
        '{"detail":[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],'
        '"msg":"Extra inputs are not permitted","input":32000}]}',
        A.MAX_TOKENS,
    ),
    (400, "The parameter 'max_tokens' is not supported", A.MAX_COMPLETION_TOKENS),
    (400, "Validation error at #/stream_options: Extra inputs are not permitted", A.NO_STREAM_OPTIONS),
    (400, "Stream options are not supported", A.NO_STREAM_OPTIONS),
    (422, "loc: ['body', 'include_usage'], msg: 'Extra inputs are not permitted'", A.NO_STREAM_OPTIONS),
    (400, "Streaming is not supported by this server", A.WHOLE_REPLIES),
    (501, "stream: not implemented", A.WHOLE_REPLIES),
    (
        400,
        "tools.0.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'",
        A.PLAIN_PROPERTIES,
    ),
    (400, "invalid property name '$top'", A.PLAIN_PROPERTIES),
    (
        400,
        "Invalid request: tools.function.parameters is not a valid moonshot flavored json schema, details: <At path "
        "'properties.external.$ref': $defs not found for reference: #/$defs/External>",
        A.INLINE_REFS,
    ),
    (400, "$ref 'QuestionOption' was set alongside unsupported fields.", A.INLINE_REFS),
    (400, "$defs is not supported", A.INLINE_REFS),
    (400, "Schema.ref was set alongside unsupported fields", A.INLINE_REFS),
    (400, "references must start with #/$defs/", A.INLINE_REFS),
    (400, "references must start with the root", A.INLINE_REFS),
    (400, "This response_format type is unavailable now", A.SCHEMA_IN_WORDS),
    (400, "'response_format.type' must be 'json_schema' or 'text'", A.SCHEMA_IN_WORDS),
    (400, "output_config: Extra inputs are not permitted", A.SCHEMA_IN_WORDS),
    (400, "output_format: Extra inputs are not permitted", A.SCHEMA_IN_WORDS),
    (400, "Unsupported parameter: 'text.format'", A.SCHEMA_IN_WORDS),
    (400, "response_schema is not supported for this model", A.SCHEMA_IN_WORDS),
    (400, "Structured output is not supported", A.SCHEMA_IN_WORDS),
    (400, "JSON mode is not enabled: unsupported", A.SCHEMA_IN_WORDS),
    (400, "Grammar error: unsupported token", A.SCHEMA_IN_WORDS),
    (400, "[{'type': 'extra_forbidden', 'loc': ('body', 'tools', 0, 'function', 'strict')}]", A.NO_STRICT),
    (
        400,
        "tools.0.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
        A.PLAIN_SCHEMAS,
    ),
    (
        400,
        'Invalid JSON payload received. Unknown name "exclusiveMinimum" at '
        "'tools[0].function_declarations[0].parameters.properties[0].value': Cannot find field.",
        A.PLAIN_SCHEMAS,
    ),
    (400, "tools.function.parameters is not a valid json schema", A.PLAIN_SCHEMAS),
    (400, "Unexpected role 'user' after role 'tool'", A.REPLY_AFTER_RESULTS),
    (400, "Expected assistant after role 'tool' but got user", A.REPLY_AFTER_RESULTS),
    (500, "jinja2.exceptions.TemplateError: System role not supported", A.SYSTEM_AS_USER),
    (400, "The system role is not supported by this model", A.SYSTEM_AS_USER),
    (500, "Jinja Exception: System message must be at the beginning.", A.SYSTEM_AS_USER),
    (400, "Developer instruction is not enabled for models/gemma-3-27b-it", A.SYSTEM_AS_USER),
    (400, "unknown role 'system'", A.SYSTEM_AS_USER),
    (
        400,
        "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported.",
        A.NO_TEMPERATURE,
    ),
    (400, "tools.0.custom.cache_control: Extra inputs are not permitted", A.NO_CACHE),
    (400, "The model does not support cachePoint: unsupported", A.NO_CACHE),
    (400, "Unrecognized request argument supplied: prompt_cache_options", A.NO_CACHE),
    (500, "image input is not supported - hint: you may need to provide the mmproj", A.NO_ARTIFACTS),
    (400, "Invalid value: 'input_audio'. The model does not support audio", A.NO_ARTIFACTS),
    (400, "openai/gpt-oss-20b is not a multimodal model: not supported", A.NO_ARTIFACTS),
    (400, "messages[3]: unknown variant `image_url`, expected `text`", A.NO_ARTIFACTS),
    (404, "No endpoints found that support image input", A.NO_ARTIFACTS),
    (400, "messages[3]: invalid type: sequence, expected a string", A.NO_ARTIFACTS),
    (400, "`temperature` is deprecated for this model.", A.NO_TEMPERATURE),
    (400, "`temperature` may only be set to 1 when thinking is enabled.", A.NO_TEMPERATURE),
    (400, "`temperature` and `top_p` cannot both be specified: unsupported", A.NO_TEMPERATURE),
    (400, "top_p: Extra inputs are not permitted", A.NO_TOP_P),
    (400, "Unrecognized request argument supplied: service_tier", A.NO_SERVICE_TIER),
    (400, "Unsupported parameter: 'reasoning_effort' is not supported with this model.", A.NO_THINKING),
    (400, "Unsupported parameter: 'reasoning.effort' is not supported with this model.", A.NO_THINKING),
    (400, "thinking is not supported by this model", A.NO_THINKING),
    (422, "{'type': 'extra_forbidden', 'loc': ['body', 'seed']}", A.NO_SEED),
    (400, "Unsupported parameter: 'stop' is not supported with this model.", A.NO_STOP),
    (400, "stop_sequences: each stop sequence must contain non-whitespace: invalid", A.NO_STOP),
    # What no other request of planq's would change.
    (400, "Upstream error: service unavailable", None),
    (500, "the stream ended unexpectedly", None),
    (400, "This model's maximum context length is 131072 tokens.", None),
    (400, "max_tokens is too large: 20000. This model supports at most 16384 completion tokens.", None),
    (401, "tool_choice is not supported", None),
    (429, "tool_choice is not supported", None),
    (400, "The model `gpt-9` does not exist or you do not have access to it.", None),
    (400, "", None),
]


@pytest.mark.parametrize(("status", "words", "expected"), REAL)
def test_a_refusal_has_one_answer(status: int, words: str, expected: Adaptation | None) -> None:
    assert adaptation_for(status, words, frozenset(Adaptation)) == expected


def test_every_row_is_the_answer_to_a_real_refusal() -> None:
    answering = {
        next(row for row in REFUSALS if row.adaptation is expected and row.fits(words.lower()))
        for _, words, expected in REAL
        if expected is not None
    }
    assert [row.words for row in REFUSALS if row not in answering] == []


def test_every_adaptation_has_a_row_and_a_meaning() -> None:
    assert {row.adaptation for row in REFUSALS} == set(Adaptation) == set(MEANING)


def test_only_what_would_change_the_request_counts() -> None:
    words = "tool_choice and temperature are not supported"
    assert adaptation_for(400, words, {A.UNFORCED_TOOL, A.NO_TEMPERATURE}) is A.UNFORCED_TOOL
    assert adaptation_for(400, words, {A.NO_TEMPERATURE}) is A.NO_TEMPERATURE
    assert adaptation_for(400, words, {A.UNFORCED_TOOL}, active={A.UNFORCED_TOOL}) is None


def test_a_refusal_inside_a_stream_has_no_status() -> None:
    assert adaptation_for(None, "stream error: the model is unavailable", frozenset(Adaptation)) is None
    assert adaptation_for(None, "tool_choice is not supported", frozenset(Adaptation)) is A.UNFORCED_TOOL


def test_the_end_of_a_refusal_that_repeats_the_request_is_not_searched() -> None:
    assert adaptation_for(400, "invalid " + "x" * 8_000 + " temperature", frozenset(Adaptation)) is None


def test_stored_names_of_another_version_are_left_out() -> None:
    assert known_adaptations(["unforced_tool", "of_another_version"]) == {A.UNFORCED_TOOL}

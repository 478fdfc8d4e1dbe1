"""The settings that say which models there are, and how their servers are asked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, Field

from planq.shared.learning_settings import LearningSettings
from planq.shared.setting_kinds import FilePath, ModelKey, WebAddress, model_name


class ModelServing(LearningSettings):
    """Models, their servers and keys, and the limits of a call."""

    model: Annotated[str, AfterValidator(model_name)] = Field(
        default="offline", description="The model of jobs that name none."
    )
    model_base_url: WebAddress = Field(
        default=None,
        validation_alias=AliasChoices("PLANQ_MODEL_BASE_URL", "OPENAI_BASE_URL"),
        description="An OpenAI-compatible server.",
    )
    anthropic_base_url: WebAddress = Field(
        default=None, validation_alias="ANTHROPIC_BASE_URL", description="Another address of Anthropic's API."
    )
    google_base_url: WebAddress = Field(
        default=None, validation_alias="GOOGLE_BASE_URL", description="Another address of Google's API."
    )
    openai_api_key: ModelKey = Field(
        default=None, validation_alias="OPENAI_API_KEY", description="Key for `openai:`."
    )
    anthropic_api_key: ModelKey = Field(
        default=None, validation_alias="ANTHROPIC_API_KEY", description="Key for `anthropic:`."
    )
    google_api_key: ModelKey = Field(
        default=None,
        validation_alias=AliasChoices("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        description="Key for `google:`.",
    )
    openai_api: Literal["auto", "chat", "responses"] = Field(
        default="auto",
        description="`chat` (Chat Completions) or `responses`; `auto`: Responses at OpenAI itself, Chat Completions "
        "elsewhere.",
    )
    # off only for servers that break when asked: the first token is not timed then
    model_stream: bool = Field(
        default=True,
        description="Replies are streamed, so that silence is noticed and a cancelled job's reply ends at once; a "
        "server that refuses is asked for whole replies by itself.",
    )
    # a provider silent for a minute has lost the request
    model_first_token_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Until a streamed reply begins (`first_token_timeout`); more for models that think in silence.",
    )
    model_timeout_seconds: float = Field(
        default=120.0, gt=0, description="Of one try of a model call, to the end of its reply."
    )
    model_attempts: int = Field(default=4, ge=1, description="Tries of one model call, the first included.")
    model_retry_after_seconds: float = Field(
        default=30.0,
        ge=0,
        description="The longest `Retry-After` that is waited for in the worker; a longer one ends the call, and its "
        "stage waits in the database.",
    )
    model_retry_seconds: float = Field(
        default=900.0,
        ge=0,
        description="How long a stage whose model fails is tried again, without a worker in between; `0`: never. In "
        "a conversation it is at most its `plan_timeout_seconds`.",
    )
    model_max_output_tokens: int = Field(default=4096, ge=1, description="The longest reply asked of a model.")
    model_temperature: float | None = Field(
        default=None, ge=0, le=2, description="Sent when it is set; some models refuse it."
    )
    model_refusal_days: float = Field(
        default=7.0,
        gt=0,
        le=365,
        description="How long planq remembers what a model's server refuses; after that it tries once again.",
    )
    model_findings_chars: int = Field(
        default=200_000,
        ge=1,
        description="How much of the steps' outputs the answering model is shown, and the planner of a further round "
        "of all rounds; the longest, or oldest, are shortened first. 200 000 are about 50 000 tokens.",
    )
    keep_exchanges: bool = Field(
        default=True, description="Keep prompts and replies in `model_calls`; off, they are redacted."
    )
    record: FilePath = Field(default=None, description="Record every exchange into this cassette.")

"""The settings that say which models there are, and how their servers are asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, create_model

from planq.shared.agentic.models.call_settings import CallSettings, SettingsOfModels
from planq.shared.agentic.models.names import Provider, key_name, parse_place
from planq.shared.agentic.models.own_prices import OwnPrice
from planq.shared.platform.errors import capped
from planq.shared.settings.kinds import FilePath, ModelKey, WebAddress, model_name
from planq.shared.settings.server_settings import ServerSettings
from planq.shared.subjects.insights.offering import InsightMode


class ModelServer(BaseModel):
    """One server of a provider's protocol; a compatible server may need no key."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    base_url: WebAddress = None
    key: ModelKey = None


def _checked_places(servers: Mapping[str, ModelServer]) -> Mapping[str, ModelServer]:
    for place, server in servers.items():
        try:
            _, name = parse_place(place)
        except ValueError:
            name = ""
        if not name or not server.base_url:
            raise ValueError(
                f"expected PROVIDER@NAME with a base_url, as in openai@house, found {capped(place, 80)!r}; "
                "NAME has at most 32 of a-z, 0-9 and -"
            )
    return servers


def _key_of(provider: Provider) -> tuple[Any, Any]:
    names = dict.fromkeys([*provider.traits.key_variables, key_name(provider).upper()])
    field = Field(default=None, validation_alias=AliasChoices(*names), description=f"Key for `{provider}:`.")
    return ModelKey, field


if TYPE_CHECKING:
    _Keys = ServerSettings
else:
    _Keys = create_model("_Keys", __base__=ServerSettings, **{key_name(one): _key_of(one) for one in Provider})


class ModelServing(_Keys):
    """Models, their servers and keys, the limits of a call, and whether jobs that end teach."""

    insights: InsightMode = Field(
        default=InsightMode.OFF,
        description="Whether jobs that end teach insights, and planners are offered them: `off`, `shadow` (learned "
        "and chosen, shown to no planner), `on`. A tenant's configuration may say otherwise.",
    )
    model: Annotated[str, AfterValidator(model_name)] = Field(
        default="offline", description="The model of jobs that name none."
    )
    openai_base_url: WebAddress = Field(
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
    ollama_base_url: WebAddress = Field(
        default=None, validation_alias="OLLAMA_BASE_URL", description="Ollama; http://127.0.0.1:11434/v1 without it."
    )
    vllm_base_url: WebAddress = Field(default=None, validation_alias="VLLM_BASE_URL", description="vLLM's server.")
    litellm_base_url: WebAddress = Field(
        default=None, validation_alias="LITELLM_BASE_URL", description="LiteLLM's proxy."
    )
    azure_base_url: WebAddress = Field(
        default=None, validation_alias="AZURE_OPENAI_ENDPOINT", description="The resource of Azure OpenAI."
    )
    model_servers: Annotated[Mapping[str, ModelServer], AfterValidator(_checked_places)] = Field(
        default_factory=dict,
        repr=False,
        description='Several servers of one provider: `{"PROVIDER@NAME": {"base_url": "…", "key": "…"}}`. Jobs name '
        "their models as `PROVIDER@NAME:MODEL`.",
    )
    model_timeout_seconds: float = Field(
        default=120.0, gt=0, description="Of one try of a model call, to the end of its reply."
    )
    model_attempts: int = Field(default=4, ge=1, description="Tries of one model call, the first included.")
    model_retry_seconds: float = Field(
        default=900.0,
        ge=0,
        description="How long a stage whose model fails is tried again, without a worker in between; `0`: never. In "
        "a conversation it is at most its `plan_timeout_seconds`.",
    )
    model_max_output_tokens: int = Field(default=4096, ge=1, description="The longest reply asked of a model.")
    model_settings: Annotated[Mapping[str, CallSettings], AfterValidator(SettingsOfModels.checked)] = Field(
        default_factory=dict,
        repr=False,
        description='How models are called, by name or by its beginning and `*`: `{"mistral:*": {"top_p": 0.9}}`. '
        "docs/models.md lists the fields.",
    )
    model_prices: Mapping[str, OwnPrice] = Field(
        default_factory=dict,
        description='US dollars for a million tokens, by the name of a model or its beginning and `*`: `{"vllm:*": '
        '{"input": 0.2, "cached_input": 0.05, "output": 0.6}}`. They win over the price lists.',
    )
    provider_batch_seconds: float = Field(
        default=60.0,
        gt=0,
        le=3_600,
        description="How long lines of a batch with `discount=provider` are collected for one provider's batch, and "
        "how often the provider is asked for it.",
    )
    keep_exchanges: bool = Field(
        default=True, description="Keep prompts and replies in `model_calls`; off, they are redacted."
    )
    record: FilePath = Field(default=None, description="Record every exchange into this cassette.")

    @property
    def model_keys(self) -> Mapping[str, str]:
        """The keys that are set, by `PROVIDER` or `PROVIDER@NAME`."""
        own = {str(provider): getattr(self, key_name(provider)) for provider in Provider}
        own |= {place: server.key for place, server in self.model_servers.items()}
        keys = {place: key.get_secret_value() for place, key in own.items() if key is not None}
        return {place: key for place, key in keys.items() if key}

    @property
    def model_urls(self) -> Mapping[str, str]:
        """The addresses that are set, by `PROVIDER` or `PROVIDER@NAME`."""
        own = {str(provider): getattr(self, f"{provider}_base_url", None) for provider in Provider}
        own |= {place: server.base_url for place, server in self.model_servers.items()}
        return {place: url for place, url in own.items() if url}

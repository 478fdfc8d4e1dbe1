"""The settings of the model gateway. The composition root hands them in: nothing here reads the environment.

The defaults are those of a process without any configuration, which speaks to no network (`offline`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from planq.shared.agentic.models.call_settings import SettingsOfModels
from planq.shared.agentic.models.names import OFFLINE, parse_model_name
from planq.shared.agentic.models.prices import OwnPrice
from planq.shared.platform.errors import InvalidRequest, Misconfigured

if TYPE_CHECKING:
    from planq.worker.egress import Egress  # it loads an HTTP client

OpenAIApi = Literal["auto", "chat", "responses"]
"""`auto`: Responses on OpenAI's own address, Chat Completions (which every compatible server has) on another."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings of model calls; times are in seconds.

    `base_urls` and `api_keys` are by `PROVIDER` or `PROVIDER@SERVER` (`ModelName.place`). `request_timeout` bounds
    one attempt from its request to the end of its reply, `first_token_timeout` the part before the reply begins, if
    it streams. `max_attempts` includes the first; the wait before attempt n+1 is drawn between 0 and `backoff_base *
    2**(n-1)`, at most `backoff_cap`. A server's `Retry-After` is obeyed up to `retry_after_cap`; a longer one ends
    the call. `keep_exchanges` stores prompts and replies in `ModelCall.exchange`. `prompt_cache` marks the repeated
    beginning of prompts for the provider's cache. `bulk_tier` is the service tier of bulk jobs without one: `auto` is
    `flex` at OpenAI's own address, `flex` the same at every OpenAI-compatible server. `record_path` is a cassette to
    append exchanges to.
    """

    default_model: str = OFFLINE
    base_urls: Mapping[str, str] = field(default_factory=dict)
    api_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    openai_api: OpenAIApi = "auto"
    stream: bool = True
    request_timeout: float = 60.0
    first_token_timeout: float = 60.0
    max_attempts: int = 3
    backoff_base: float = 0.5
    backoff_cap: float = 10.0
    retry_after_cap: float = 30.0
    keep_exchanges: bool = True
    max_output_tokens: int = 4096
    of_models: SettingsOfModels = field(default_factory=dict)
    prompt_cache: bool = True
    bulk_tier: Literal["auto", "flex"] = "auto"
    prices: Mapping[str, OwnPrice] = field(default_factory=dict)
    record_path: Path | None = None
    egress: Egress | None = None

    @property
    def longest_call(self) -> float:
        """Seconds that a logical call takes at most: every attempt times out, every wait is the longest."""
        longest_wait = max(self.backoff_cap, self.retry_after_cap)
        return self.max_attempts * self.request_timeout + (self.max_attempts - 1) * longest_wait

    def __post_init__(self) -> None:
        try:
            parse_model_name(self.default_model)
        except InvalidRequest as error:
            raise Misconfigured(f"default model: {error.message}") from error
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise Misconfigured(f"model setting {name}: expected more than 0, found {getattr(self, name)}")
        for name in _WAITS:
            if getattr(self, name) < 0:
                raise Misconfigured(f"model setting {name}: expected 0 or more seconds, found {getattr(self, name)}")


_POSITIVE = ("request_timeout", "first_token_timeout", "max_attempts", "max_output_tokens")
_WAITS = ("backoff_base", "backoff_cap", "retry_after_cap")

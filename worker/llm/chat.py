"""Chat Completions as the many servers stream them that call themselves OpenAI-compatible.

Imported with the OpenAI SDK only. Two things differ from pydantic-ai's own reading (2.68): a stream without a finish
reason has broken off, and usage that comes with every chunk is the sum so far, not a share to be added up.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.usage import RequestUsage

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

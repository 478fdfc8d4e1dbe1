"""The seam between the gateway and whatever answers: a provider, a cassette, or the offline rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from shared.domain.model import ToolCallRequest

FREE = Decimal(0)
"""What a reply costs that reached no provider."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back. `cost_usd` is None when no price is known, `finish_reason` when none was told."""

    text: str = ""
    tool_calls: Sequence[ToolCallRequest] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = None
    finish_reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form that exchanges and cassettes hold."""
        calls = [
            {"name": call.name, "arguments": raw if isinstance(raw := call.arguments, str) else dict(raw)}
            for call in self.tool_calls
        ]
        usage = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        return {"text": self.text, "tool_calls": calls, "finish_reason": self.finish_reason, "usage": usage}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], cost_usd: Decimal | None) -> Completion:
        """Read the stored form; raise `KeyError`, `TypeError` or `ValueError` when it is none."""
        calls = [ToolCallRequest(str(call["name"]), _arguments(call["arguments"])) for call in stored["tool_calls"]]
        usage = stored["usage"]
        finish_reason = stored["finish_reason"]
        return cls(
            text=str(stored["text"]),
            tool_calls=calls,
            input_tokens=int(usage["input_tokens"]),
            output_tokens=int(usage["output_tokens"]),
            cost_usd=cost_usd,
            finish_reason=None if finish_reason is None else str(finish_reason),
        )


def _arguments(stored: Any) -> Mapping[str, Any] | str:
    if not isinstance(stored, (str, dict)):
        raise TypeError(f"arguments of a tool call: expected an object or a string, found {type(stored).__name__}")
    return stored

"""The reply of a provider, a cassette or the offline rules to a model request, and its usage.

Providers report the tokens of a reply early (Anthropic, Google) or with its last event (OpenAI). If a stream breaks
off, the unreported part is estimated, and kept apart, so that a record can say so.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from planq.shared.agentic.models.ending import Incomplete, cut_off_by
from planq.shared.agentic.models.exchange import ToolCallRequest

if TYPE_CHECKING:
    from planq.worker.models.request import ModelRequest  # which imports prompts

NO_COST = Decimal(0)
"""The cost of a reply without a provider."""


@dataclass(frozen=True, slots=True)
class MadeFile:
    """An image, a file or audio in a reply; its media type is what the provider says."""

    media_type: str
    data: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        return sha256(self.data).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the form in exchanges, without the bytes."""
        return {"media_type": self.media_type, "bytes": len(self.data), "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply. `cost_usd` is None if no price is known, `finish_reason` if none was reported.

    `asked` is the request that was sent if it differs from the question (`ModelRequest.as_turn`).
    `state` is that of `ModelReply`. `thoughts` is the model's reasoning, "" for none. `incomplete` says why the reply
    is not whole, None if it is. `cache_read_tokens` and `cache_write_tokens` are the parts of `input_tokens` that the
    provider read from its prompt cache or stored in it. With `is_batched` the reply came from a provider's batch, at
    half price. `files` are those that the model created.
    """

    text: str = ""
    tool_calls: Sequence[ToolCallRequest] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = None
    finish_reason: str | None = None
    state: Any = None
    thoughts: str = ""
    incomplete: Incomplete | None = None
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    asked: ModelRequest | None = None
    is_batched: bool = False
    files: Sequence[MadeFile] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the form in exchanges."""
        calls = [
            {"name": call.name, "arguments": raw if isinstance(raw := call.arguments, str) else dict(raw)}
            | ({"id": call.id} if call.id else {})
            for call in self.tool_calls
        ]
        usage = {"input_tokens": self.input_tokens, "output_tokens": self.output_tokens}
        cached = {"cache_read_tokens": self.cache_read_tokens, "cache_write_tokens": self.cache_write_tokens}
        usage |= {name: tokens for name, tokens in cached.items() if tokens}
        form: dict[str, Any] = {
            "text": self.text,
            "tool_calls": calls,
            "finish_reason": self.finish_reason,
            "usage": usage,
        }
        if self.thoughts:
            form["thoughts"] = self.thoughts
        if self.files:
            form["files"] = [file.to_json() for file in self.files]
        if self.incomplete is not None:
            form["incomplete"] = {"finish_reason": self.incomplete.finish_reason, "said": self.incomplete.said}
        return form if self.state is None else {**form, "state": self.state}

    def files_to_json(self) -> dict[str, Any]:
        """Return the files with their bytes, which cassettes have in addition to the form of exchanges."""
        files = [{**file.to_json(), "data": b64encode(file.data).decode()} for file in self.files]
        return {"files": files} if files else {}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], cost_usd: Decimal | None) -> Completion:
        """Read the form of cassettes; raise `KeyError`, `TypeError` or `ValueError` for any other."""
        calls = [
            ToolCallRequest(str(call["name"]), _arguments(call["arguments"]), str(call.get("id", "")))
            for call in stored["tool_calls"]
        ]
        usage = stored["usage"]
        finish_reason = stored["finish_reason"]
        cut = stored.get("incomplete") or {}
        return cls(
            text=str(stored["text"]),
            tool_calls=calls,
            input_tokens=int(usage["input_tokens"]),
            output_tokens=int(usage["output_tokens"]),
            cost_usd=cost_usd,
            finish_reason=None if finish_reason is None else str(finish_reason),
            state=stored.get("state"),
            thoughts=str(stored.get("thoughts", "")),
            incomplete=cut_off_by(cut.get("finish_reason"), finish_reason, str(cut.get("said", ""))),
            cache_read_tokens=int(usage.get("cache_read_tokens", 0)),
            cache_write_tokens=int(usage.get("cache_write_tokens", 0)),
            files=[MadeFile(str(file["media_type"]), b64decode(file["data"])) for file in stored.get("files", ())],
        )


def _arguments(stored: Any) -> Mapping[str, Any] | str:
    if not isinstance(stored, (str, dict)):
        raise TypeError(f"arguments of a tool call: expected an object or a string, found {type(stored).__name__}")
    return stored


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and their price; `cost_usd` is None while no price is known."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: Decimal | None = None
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @classmethod
    def of(cls, completion: Completion) -> Usage:
        return cls(
            completion.input_tokens,
            completion.output_tokens,
            completion.cost_usd,
            completion.cache_read_tokens,
            completion.cache_write_tokens,
        )

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            sum(costs, Decimal(0)) if costs else None,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(slots=True)
class BrokenTryUsage:
    """Usage of the broken attempts of one logical call: as `reported`, with estimates (`probable`), and the last
    reply.
    """

    attempts: int = 0
    reported: Usage = Usage()
    probable: Usage = Usage()
    partial: Completion | None = None

    def broke_off(self, reported: Completion, probable: Completion) -> None:
        """Add a reply that broke off, with its reported and its probable usage."""
        self.partial = probable
        self.reported += Usage.of(reported)
        self.probable += Usage.of(probable)

    @property
    def caveat(self) -> dict[str, Any]:
        """`{"estimated": true}` if a part of the usage is an estimate, otherwise empty."""
        return {} if self.probable == self.reported else {"estimated": True}

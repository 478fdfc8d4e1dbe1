"""Anthropic's prompt cache as its documentation describes it: what a request reads from the cache, writes and pays.

The order of a prompt is tools, system, messages. A mark (`cache_control`) stores the prompt up to and with its block.
A request reads the longest stored beginning that ends at one of its marks, or at one of the 20 blocks before it.
Beginnings below a minimum are not stored. Another model or another `tool_choice` makes messages miss.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

_LOOKBACK = 20
_MOST_MARKS = 4
_CHARS_PER_TOKEN = 4
LEAST_TOKENS = 1_024
"""Tokens of the shortest beginning that is stored."""


class Refused(ValueError):
    """What the provider answers 400 to."""


@dataclass(frozen=True)
class Block:
    """A block of a prompt: its text without the mark, and whether it has one."""

    text: str
    is_marked: bool

    @property
    def tokens(self) -> int:
        return -(-len(self.text) // _CHARS_PER_TOKEN)


def blocks_of(body: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the blocks of a request in the order in which the provider compares them."""
    system = body.get("system") or []
    plain = [{"type": "text", "text": system}] if isinstance(system, str) else system
    groups: list[tuple[Any, Any]] = [("tools", body.get("tools", [])), ("system", plain)]
    for message in body["messages"]:
        said = message["content"]
        whole = [{"type": "text", "text": said}] if isinstance(said, str) else said
        groups.append(([message["role"], body.get("tool_choice")], whole))
    for place, blocks in groups:
        for block in blocks:
            mark = block.get("cache_control")
            if mark is not None and mark.get("type") != "ephemeral":
                raise Refused(f"cache_control.type: expected 'ephemeral', found {mark.get('type')!r}")
            if mark is not None and block.get("type") == "text" and not block["text"]:
                raise Refused("cache_control cannot be set for empty text blocks")
            bare = {name: value for name, value in block.items() if name != "cache_control"}
            yield Block(json.dumps([place, bare], sort_keys=True), mark is not None)


@dataclass
class PromptCache:
    """The stored beginnings of one account; `is_open` False is a provider without a cache."""

    is_open: bool = True
    stored: set[str] = field(default_factory=set)

    def usage(self, body: Mapping[str, Any]) -> Json:
        """Return the usage of a request, and store what its marks ask for; raises `Refused`."""
        blocks = list(blocks_of(body))
        marks = [number for number, block in enumerate(blocks) if block.is_marked]
        if len(marks) > _MOST_MARKS:
            raise Refused(f"A maximum of {_MOST_MARKS} blocks with cache_control may be provided; found {len(marks)}")
        beginnings, sums = [str(body["model"])], [0]
        for block in blocks:
            beginnings.append(f"{beginnings[-1]}\n{block.text}")
            sums.append(sums[-1] + block.tokens)
        whole = sums[-1]
        if not self.is_open or not marks:
            return {"input_tokens": whole, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
        read = max((self._found(beginnings, sums, mark + 1) for mark in marks), default=0)
        ends = [mark + 1 for mark in marks if sums[mark + 1] >= LEAST_TOKENS]
        self.stored |= {beginnings[end] for end in ends}
        marked = max((sums[end] for end in ends), default=0)
        written = max(marked - read, 0)
        rest = whole - read - written
        return {"input_tokens": rest, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}

    def _found(self, beginnings: list[str], sums: list[int], end: int) -> int:
        """Return the tokens of the longest stored beginning that ends at a mark or shortly before it."""
        near = range(end, max(end - _LOOKBACK - 1, 0), -1)
        return next((sums[place] for place in near if beginnings[place] in self.stored), 0)

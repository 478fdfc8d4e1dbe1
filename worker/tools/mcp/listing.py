"""What a server lists, read tool by tool and bounded: one that cannot be used is left out and named.

Whatever a server says is untrusted. It never keeps more than the tool that it concerns from being offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planq.shared.platform.errors import capped
from planq.shared.platform.values.encoding import encode

MAX_TOOLS = 1_000
"""Maximum number of tools of one server."""

MAX_PAGES = 100
"""Maximum number of pages of one `tools/list`."""

MAX_LISTED_BYTES = 8 * 1024 * 1024
"""Maximum size of all tools of one server, as JSON."""

MAX_TOOL_BYTES = 256 * 1024
"""Maximum size of one tool, as JSON: its description and both schemas."""

MAX_LEFT_OUT = 100
"""Maximum number of tools of one server that are noted as left out."""

MAX_NAME_CHARS = 256
"""Maximum length of a tool's name; the protocol recommends at most 128 characters."""

_SHOWN_NAME_CHARS = 60


def place_of(source: str, name: Any) -> str:
    """Return where a tool comes from, for messages; its name may be anything, and of any length."""
    return f"{source} (tool {capped(repr(name), _SHOWN_NAME_CHARS)})"


@dataclass(slots=True)
class Listing:
    """The tools of a server in the JSON form of `tools/list`, and a sentence for each that is left out."""

    source: str
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _size: int = 0
    _names: set[str] = field(default_factory=set)

    def add(self, tool: Mapping[str, Any]) -> None:
        fault = self._fault(tool)
        if fault is None:
            self.tools.append(tool)
            self._names.add(tool["name"])
        else:
            self.leave_out(tool["name"], fault)

    def leave_out(self, name: Any, fault: str) -> None:
        if len(self.left_out) < MAX_LEFT_OUT:
            self.left_out.append(f"{place_of(self.source, name)}: {fault}")

    def _fault(self, tool: Mapping[str, Any]) -> str | None:
        name = tool["name"]
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
            return f"expected a name of 1 to {MAX_NAME_CHARS} printable characters"
        if name in self._names:
            return "the server lists another tool of the same name before it"
        if len(self.tools) >= MAX_TOOLS:
            return f"the server lists more than {MAX_TOOLS} tools"
        try:
            text = encode(tool)
        except (ValueError, TypeError, RecursionError):
            return "its definition cannot be written as JSON"
        if b"\\u0000" in text:
            return "its definition holds a null character, which cannot be stored"
        if len(text) > MAX_TOOL_BYTES:
            return f"its definition has {len(text)} bytes; expected at most {MAX_TOOL_BYTES}"
        if self._size + len(text) > MAX_LISTED_BYTES:
            return f"the tools of the server have more than {MAX_LISTED_BYTES} bytes together"
        self._size += len(text)
        return None

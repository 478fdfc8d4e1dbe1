"""Read the tool calls of a reply: which pieces belong to one call, its arguments, and calls that are written as text.

Servers differ in how they tell the calls of a stream apart: by index, by id, by neither. `CallOrder` decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

from planq.shared.agentic.models.exchange import ToolCallRequest
from planq.shared.agentic.plan.interpret import decoded


@dataclass(slots=True)
class _Begun:
    """The received part of a streamed call; `place` is its number in the reply."""

    place: int
    index: int | None
    id: str
    name: str
    arguments: list[str]

    @property
    def is_whole(self) -> bool:
        """True when the arguments are an object already: what comes next under a name is another call."""
        text = "".join(self.arguments)
        return text.rstrip().endswith("}") and isinstance(decoded(text), dict)


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a call as a server streams it; what it leaves out is None or empty."""

    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""


class CallOrder:
    """Tells the calls of one streamed reply apart."""

    def __init__(self, known: Collection[str] = ()) -> None:
        """`known` are the names of the offered tools."""
        self._known = known
        self._calls: list[_Begun] = []

    def place(self, piece: CallPiece) -> CallPiece:
        """Return the piece with the number of its call as its index, and without a name or id that is repeated."""
        call = self._continued(piece)
        if call is None:
            call = _Begun(len(self._calls), piece.index, piece.id, piece.name, [])
            self._calls.append(call)
            name = piece.name
        else:
            name = "" if piece.name == call.name else piece.name
            call.name += name
        identity = "" if call.arguments else piece.id
        call.arguments.append(piece.arguments)
        return CallPiece(call.place, identity, name, piece.arguments)

    def _continued(self, piece: CallPiece) -> _Begun | None:
        call = self._addressed(piece)
        if call is None or not piece.name:
            return call
        if piece.id and call.id and piece.id != call.id:
            return None
        if not call.name:
            return call
        if piece.id and piece.id == call.id and piece.index is not None and piece.name == call.name:
            return call
        if piece.name == call.name:
            return None if call.is_whole or piece.index is None else call
        # Some servers stream a name in pieces.
        return None if any(call.arguments) or piece.name in self._known or piece.index is None else call

    def _addressed(self, piece: CallPiece) -> _Begun | None:
        """Return the last call with the piece's index, else with its id; a piece without a name belongs to one."""
        if not self._calls:
            return None
        newest = list(reversed(self._calls))
        by_id = next((call for call in newest if piece.id and call.id == piece.id), None)
        if piece.index is not None:
            at_index = [call for call in newest if call.index == piece.index]
            if at_index:
                return by_id if by_id in at_index else at_index[0]
        if piece.name and (piece.index is not None or piece.id):
            return by_id if piece.index is None else None
        return by_id or newest[0]


def read_arguments(raw: Any) -> Mapping[str, Any] | str:
    """Return arguments as an object, invalid ones as text; servers send objects, JSON, JSON of JSON, or repeats."""
    text = argument_text(raw)
    value = decoded(text)
    if isinstance(value, str) and value is not text:
        value = decoded(value)
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    return _repeated(text) or text


def argument_text(raw: Any) -> str:
    """Return a call's arguments as text; some SDKs decode them."""
    try:
        return json.dumps(raw) if isinstance(raw, Mapping) else str(raw or "")
    except RecursionError:
        return "{… nested too deeply"


_DECODER = json.JSONDecoder()


def _repeated(text: str) -> Mapping[str, Any] | None:
    """Return the one object that a text holds twice, or after an empty one; None for any other text."""
    stripped = text.strip()
    if not stripped.startswith("{"):
        return None
    try:
        first, end = _DECODER.raw_decode(stripped)
    except (ValueError, RecursionError):
        return None
    second = decoded(stripped[end:])
    if not isinstance(second, dict) or not isinstance(decoded(stripped[:end]), dict):
        return None
    return second if first in ({}, second) else None


def with_own_ids(calls: Sequence[ToolCallRequest]) -> list[ToolCallRequest]:
    """Return the calls, each with an id that no other one has; those that a provider gave stay where they can."""
    seen: set[str] = set()
    own: list[ToolCallRequest] = []
    for call in calls:
        # Mistral refuses ids that are not of nine letters and digits.
        known = replace(call, id=uuid4().hex[:9]) if not call.id or call.id in seen else call
        seen.add(known.id)
        own.append(known)
    return own


_ARGUMENTS: Final = ("arguments", "parameters", "args", "input", "tool_input", "kwargs", "tool_args")
_NAMES: Final = ("name", "tool_name", "tool", "function", "function_name", "recipient_name")

_JSON_PREFIX = re.compile(r"\s*(?:<\|?/?[\w:]+\|?>|\[/?TOOL_CALLS\]|<｜[^｜]+｜>)?[\s,;]*", re.ASCII)

_NAMED = (
    # [TOOL_CALLS]name{…}, [TOOL_CALLS]name[ARGS]{…}, and name with its provider's id between them
    re.compile(r"\[TOOL_CALLS\]\s*(?P<name>[\w.:-]+)(?:\[CALL_ID\][\w-]+)?(?:\[ARGS\])?\s*(?=\{)"),
    re.compile(r"<function=(?P<name>[^<>\s]+)>\s*(?=\{)"),
    re.compile(r"<\|channel\|>[^<]*?to=(?:functions\.)?(?P<name>[\w.:-]+)[\s\S]{0,200}?<\|message\|>\s*(?=\{)"),
    re.compile(
        r"<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w.-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(?=\{)"
    ),
    re.compile(
        r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<name>[\w.:-]+)(?:<｜tool▁sep｜>)?\s*(?:```json\s*)?(?=\{)"
    ),
)
"""Calls of a name that is followed by its arguments as JSON."""


@dataclass(frozen=True, slots=True)
class _Element:
    """A name (first group of `opening`) and its text up to `closing`; one pattern for both would be quadratic."""

    opening: re.Pattern[str]
    closing: re.Pattern[str]

    def all_in(self, text: str) -> Iterator[tuple[str, str]]:
        at = 0
        while (begun := self.opening.search(text, at)) and (ended := self.closing.search(text, begun.end())):
            yield begun[1], text[begun.end() : ended.start()]
            at = ended.end()


_ELEMENTS = (
    (
        _Element(re.compile(r"<function=([^<>\s]+)>"), re.compile("</function>")),
        _Element(re.compile(r"<parameter=([^<>\s]+)>"), re.compile("</parameter>")),
    ),
    (
        _Element(
            re.compile(r'<(?:｜DSML｜)?invoke\s+name="([^"]+)"\s*>'),
            re.compile("</(?:｜DSML｜)?invoke>"),
        ),
        _Element(
            re.compile(r'<(?:｜DSML｜)?parameter\s+name="([^"]+)"[^<>]*>'),
            re.compile("</(?:｜DSML｜)?parameter>"),
        ),
    ),
    (
        _Element(
            re.compile(r"<tool_call>\s*([\w.:-]+)\s*(?=<arg_key>|</tool_call>)"),
            re.compile("</tool_call>"),
        ),
        _Element(re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>"), re.compile("</arg_value>")),
    ),
)
"""Calls whose arguments are elements: that of a call, and that of one argument."""

_FENCE = "```"
_LANGUAGE = re.compile(r"[\w-]*")
_MEANT = re.compile(
    r"\{|<parameter|<arg_key>|<(?:｜DSML｜)?invoke|<function=|<｜tool▁call▁begin｜>|<\|tool_call_begin\|>"
)
"""Text that only a call has, even a damaged one."""

_ANY_NAME = re.compile(r"(?:\"name\"\s*:\s*\"|<function=|\[TOOL_CALLS\]\s*|<tool_call>\s*|name=\")([\w.:-]{1,200})")
_UNNAMED = "tool_call"

MAX_CALL_CHARS = 1_000_000


def written_calls(marked: Iterable[str]) -> list[ToolCallRequest]:
    """Return the calls in marked texts; a damaged call has its text as its arguments, which no tool accepts."""
    calls: list[ToolCallRequest] = []
    for text in marked:
        found = _read(text) if len(text) <= MAX_CALL_CHARS else []
        if not found and _MEANT.search(text):
            name = _ANY_NAME.search(text)
            found = [ToolCallRequest(_UNNAMED if name is None else name[1], text)]
        calls += found
    return calls


def _read(text: str) -> list[ToolCallRequest]:
    for way in (_named, _elements, _objects):
        found = way(text)
        if found:
            return found
    return []


def _named(text: str) -> list[ToolCallRequest]:
    for pattern in _NAMED:
        found = list(pattern.finditer(text))
        if found:
            ends = [*(match.start() for match in found[1:]), len(text)]
            return [_named_call(text, match, end) for match, end in zip(found, ends, strict=True)]
    return []


def _named_call(text: str, match: re.Match[str], end: int) -> ToolCallRequest:
    arguments = _object_at(text, match.end())
    return ToolCallRequest(match["name"], text[match.end() : end].strip() if arguments is None else arguments)


def _elements(text: str) -> list[ToolCallRequest]:
    for element, argument in _ELEMENTS:
        calls = [
            ToolCallRequest(name, {key.strip(): _value(value) for key, value in argument.all_in(body)})
            for name, body in element.all_in(text)
        ]
        if calls:
            return calls
    return []


def _value(text: str) -> Any:
    """Return an argument as JSON where it is an object, a list, a number or a word of JSON, else as its text."""
    value = decoded(text) if text.strip() else text
    return text.strip("\n") if isinstance(value, str) else value


def _objects(text: str, *, is_whole: bool = False) -> list[ToolCallRequest]:
    """Return calls written as JSON objects, one after another or in a list; `is_whole`: nothing may follow them."""
    at = 0
    calls: list[ToolCallRequest] = []
    while True:
        at = _JSON_PREFIX.match(text, at).end()  # type: ignore[union-attr]
        if not text.startswith(("{", "["), at):
            return [] if is_whole and text[at:].strip() else calls
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return [] if is_whole else calls
        found = [_call_of(one) for one in (value if isinstance(value, list) else [value])]
        if None in found:
            return []
        calls += [one for one in found if one is not None]


def _object_at(text: str, start: int) -> Mapping[str, Any] | None:
    try:
        value, _ = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _call_of(value: Any) -> ToolCallRequest | None:
    if not isinstance(value, Mapping):
        return None
    function = value.get("function")
    if isinstance(function, Mapping):
        value = {**function, "id": value.get("id")}
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str) and value[key].strip()), None)
    given = [key for key in _ARGUMENTS if key in value]
    if name is None or not given:
        return None
    call_id = value.get("id")
    arguments = read_arguments(value[given[0]])
    return ToolCallRequest(
        name.strip().removeprefix("functions."), arguments, call_id if isinstance(call_id, str) else ""
    )


def unmarked_calls(text: str, known: Callable[[str], bool]) -> list[ToolCallRequest]:
    """Return the JSON calls of `known` tools at a text's end, fenced or as the whole; other objects are an answer."""
    if len(text) > MAX_CALL_CHARS or "{" not in text:
        return []
    calls = _objects(_last_fenced(text) or text, is_whole=True)
    return calls if all(known(call.name) for call in calls) else []


def _last_fenced(text: str) -> str | None:
    """Return what the fence holds that a text ends with, None where it ends with none."""
    text = text.rstrip()
    if not text.endswith(_FENCE):
        return None
    *lines, last = text.removesuffix(_FENCE).split("\n")
    for at in range(len(lines) - 1, -1, -1):
        _, fence, language = lines[at].rpartition(_FENCE)
        # In a line of JSON, a fence is in a string: what follows it is no language.
        if fence and _LANGUAGE.fullmatch(language.strip()):
            return "\n".join([*lines[at + 1 :], last])
    return None

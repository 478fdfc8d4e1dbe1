"""Tell the answer, the thoughts and the written calls of a text apart, also while it comes in pieces.

Servers without a parser for their model's template leave its marks in the text: `<think>…</think>`, a closing mark
alone (the template itself opened the thoughts), channels, calls as text. The tables below list the marks.

A mark inside a code fence, or quoted, is part of the answer: people ask about such marks, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    ANSWER = "answer"
    THOUGHTS = "thoughts"
    CALL = "call"  # of a tool, as text, with its marks
    RECALL = "recall"  # an empty part: the answer so far was thoughts


class Part(NamedTuple):
    """A part of a text; parts that follow each other may be of the same kind."""

    kind: Kind
    text: str


_THOUGHTS: Final[Mapping[str, str]] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|channel>thought": "<channel|>",
}
"""Marks around thoughts, by the template that writes them."""

_CALLS: Final[Mapping[str, str]] = {
    "<tool_call>": "</tool_call>",
    "<function_call>": "</function_call>",
    "<tool_calls>": "</tool_calls>",
    "<function_calls>": "</function_calls>",
    "<minimax:tool_call>": "</minimax:tool_call>",
    "<function=": "</function>",
    "<|tool_call|>": "<|/tool_call|>",
    "<|tool_calls_section_begin|>": "<|tool_calls_section_end|>",
    "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>",
    "<｜DSML｜function_calls>": "</｜DSML｜function_calls>",
    "[TOOL_CALLS]": "",
    "<|python_tag|>": "<|eom_id|>",
}
"""Marks around calls; a call whose closing mark is missing, or empty here, goes on to the end of the text."""

_BARE_THOUGHTS, _BARE_ANSWER = "analysis", "assistantfinal"
"""Channels whose marks a server has removed, and nothing else: `analysisThe user asks…assistantfinalIt is 4.`"""

_HEADER = re.compile(
    r"(?:<\|start\|>[a-z]*\s*)?<\|channel\|>\s*(?P<channel>[a-z]+)"
    r"(?P<rest>(?:(?!<\|(?:message|channel|start|end)\|>)[\s\S]){0,200})<\|message\|>"
)
_HEADER_BEGINS = ("<|start|>", "<|channel|>")
_MAX_HEADER_CHARS = 300
_CHANNEL_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_CHANNEL_END = re.compile("|".join(map(re.escape, _CHANNEL_ENDS)) + r"|(?=<\|start\|>|<\|channel\|>)")
_RECIPIENT = re.compile(r"to=([\w.:-]+)")
_FINAL = "final"

_CLOSING = frozenset(_THOUGHTS.values())
_FIXED = sorted({*_THOUGHTS, *_CLOSING, *_CALLS, *_HEADER_BEGINS}, key=len, reverse=True)
_MARK = re.compile("|".join(map(re.escape, _FIXED)))
_BEGINNINGS = frozenset(mark[:size] for mark in (*_FIXED, *_CHANNEL_ENDS) for size in range(1, len(mark)))
_LONGEST = max(map(len, _FIXED))
_QUOTES = "\"'“”«»"
_SENTENCE_ENDS = ".!?…。！？"
_FENCE = "```"
_BETWEEN = "\n\n"
"""Between two thoughts."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """An unfinished part: its mark `opening`, its `end`; if not `is_certain` it may still be the answer."""

    kind: Kind
    opening: str
    end: re.Pattern[str]
    is_certain: bool = True


@dataclass(slots=True)
class _Line:
    """The state of the current line of the answer that marks depend on."""

    head: str = ""  # without blanks before it, cut
    last: str = ""
    last_word: str = ""  # the last character that is not blank
    is_code: bool = False

    @property
    def is_blank(self) -> bool:
        return not self.head

    def add(self, text: str) -> None:
        if not text:
            return
        self.last = text[-1]
        stripped = text.strip()
        if stripped:
            self.last_word = stripped[-1]
        if len(self.head) < len(_FENCE):
            self.head = (self.head + (text if self.head else text.lstrip()))[: len(_FENCE)]
        self.is_code ^= text.count("`") % 2 == 1


class TextReader:
    def __init__(self) -> None:
        self._buffer = ""
        self._searched = 0
        self._inside: _Inside | None = None
        self._line = _Line()
        self._is_fenced = False
        self._has_answered = False
        self._has_thought = False

    def feed(self, piece: str) -> list[Part]:
        """Return what is certain after one more piece, in order."""
        self._buffer += piece
        return self._read(is_over=False)

    def end(self) -> list[Part]:
        return self._read(is_over=True)

    def _read(self, *, is_over: bool) -> list[Part]:
        parts: list[Part] = []
        while self._buffer:
            before = len(self._buffer), self._inside
            parts += self._within(self._inside, is_over) if self._inside else self._between(is_over)
            if before == (len(self._buffer), self._inside):
                break
        if is_over and self._inside is not None:  # it ends right after its mark
            if self._inside.kind is Kind.CALL:
                parts.append(Part(Kind.CALL, self._inside.opening))
            elif not self._inside.is_certain:
                parts += self._answer(self._inside.opening)
        return parts

    def _within(self, inside: _Inside, is_over: bool) -> list[Part]:
        found = inside.end.search(self._buffer, self._searched)
        holds = inside.kind is Kind.CALL or not inside.is_certain
        if found is None and not is_over:
            if holds:
                self._searched = max(len(self._buffer) - _LONGEST, 0)
                return []
            piece = self._take(len(self._buffer) - _held(self._buffer))
            return self._answer(piece) if inside.kind is Kind.ANSWER else _some(inside.kind, piece)
        self._inside, self._searched = None, 0
        if found is None and not inside.is_certain:
            return self._answer(inside.opening + self._take(len(self._buffer)))
        until = len(self._buffer) if found is None else found.start()
        text = self._take(until)
        closing = "" if found is None else self._take(found.end() - found.start())
        if inside.kind is Kind.CALL:
            return [Part(Kind.CALL, inside.opening + text + closing)]
        if inside.kind is Kind.ANSWER:
            return self._answer(text)
        self._has_thought, self._line = True, _Line()
        return _some(Kind.THOUGHTS, text + _BETWEEN)

    def _between(self, is_over: bool) -> list[Part]:
        bare = self._bare(is_over)
        if bare is not None:
            return bare
        found = _MARK.search(self._buffer)
        if found is None:
            return self._answer(self._take(len(self._buffer) - (0 if is_over else _held(self._buffer))))
        if found.start():
            return self._answer(self._take(found.start()))
        mark = found.group()
        after = self._buffer[len(mark) : len(mark) + 1]
        if self._is_fenced or self._line.is_code or (self._line.last in _QUOTES and after in _QUOTES):
            if not after and not is_over and not self._is_fenced:
                return []  # whether it is quoted is seen by what follows
            return self._answer(self._take(len(mark)))
        if mark in _HEADER_BEGINS:
            return self._channel(mark, is_over)
        if mark in _CLOSING:
            return self._closed(mark, is_over)
        if mark in _CALLS:
            self._take(len(mark))
            self._inside = _Inside(Kind.CALL, mark, _end_of(_CALLS[mark]))
            return []
        if not self._line.is_blank:
            return self._answer(self._take(len(mark)))
        self._take(len(mark))
        is_certain = not self._has_answered
        self._inside = _Inside(Kind.THOUGHTS, mark, _end_of(_THOUGHTS[mark]), is_certain)
        return []

    def _bare(self, is_over: bool) -> list[Part] | None:
        """Read channels without marks, which only the beginning of a text has; None for any other text."""
        if self._has_answered or self._has_thought or self._line.head:
            return None
        size = len(_BARE_THOUGHTS)
        if len(self._buffer) <= size:
            return [] if not is_over and _BARE_THOUGHTS.startswith(self._buffer) else None
        if not self._buffer.startswith(_BARE_THOUGHTS) or not self._buffer[size].isupper():
            return None
        self._take(size)
        self._inside = _Inside(Kind.THOUGHTS, _BARE_THOUGHTS, re.compile(_BARE_ANSWER), is_certain=False)
        return []

    def _channel(self, mark: str, is_over: bool) -> list[Part]:
        header = _HEADER.match(self._buffer)
        if header is None:
            if not is_over and len(self._buffer) < _MAX_HEADER_CHARS:
                return []
            return self._answer(self._take(len(mark)))
        self._take(header.end())
        recipient = _RECIPIENT.search(header["rest"])
        end = _CHANNEL_END
        if recipient is not None:
            self._inside = _Inside(Kind.CALL, header.group(), end)
            return []
        if header["channel"] != _FINAL:
            self._inside = _Inside(Kind.THOUGHTS, header.group(), end)
            return []
        self._inside = _Inside(Kind.ANSWER, "", end)
        return self._recalled()

    def _closed(self, mark: str, is_over: bool) -> list[Part]:
        """Read a closing mark that nothing has opened: what came before it are thoughts, unless it is spoken of."""
        after = self._buffer[len(mark) :]
        if not after and not is_over:
            return []
        line = self._line
        is_end = (
            line.is_blank or line.last_word in _SENTENCE_ENDS or not after or after[0] in "\r\n" or after[0].isalnum()
        )
        if self._has_thought or not is_end:
            return self._answer(self._take(len(mark)))
        self._take(len(mark))
        return self._recalled()

    def _recalled(self) -> list[Part]:
        self._has_thought, self._line = True, _Line()
        if not self._has_answered:
            return []
        self._has_answered = False
        return [Part(Kind.RECALL, "")]

    def _answer(self, text: str) -> list[Part]:
        """Return a piece of the answer; blanks between thoughts and the answer are in neither."""
        if self._has_thought and not self._has_answered:
            text = text.lstrip()
        if not text:
            return []
        *lines, last = text.split("\n")
        for line in lines:
            self._line.add(line)
            self._is_fenced ^= self._line.head.startswith(_FENCE)
            self._line = _Line()
        self._line.add(last)
        self._has_answered = self._has_answered or not text.isspace()
        return [Part(Kind.ANSWER, text)]

    def _take(self, size: int) -> str:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken


def _some(kind: Kind, text: str) -> list[Part]:
    return [Part(kind, text)] if text else []


def _end_of(mark: str) -> re.Pattern[str]:
    return re.compile(re.escape(mark) if mark else r"\Z(?!)")


def _held(text: str) -> int:
    tail = text[-_LONGEST:]
    return next((size for size in range(len(tail), 0, -1) if tail[-size:] in _BEGINNINGS), 0)


@dataclass(frozen=True, slots=True)
class ReadText:
    """A whole text; `calls` are those written in it, with their marks, and `with_calls` the answer including them."""

    answer: str
    with_calls: str
    thoughts: str = ""
    calls: tuple[str, ...] = ()


def read_text(text: str) -> ReadText:
    """Return the parts of a whole text; one without any mark is the answer as it is."""
    reader = TextReader()
    return joined([*reader.feed(text), *reader.end()])


def joined(parts: Iterable[Part]) -> ReadText:
    said: list[Part] = []
    thoughts: list[str] = []
    for part in parts:
        kind = part.kind
        if kind is Kind.RECALL:
            thoughts.append(_text(said) + _BETWEEN)
            said.clear()
        elif kind is Kind.THOUGHTS:
            thoughts.append(part.text)
        else:
            said.append(part)
    calls = tuple(part.text for part in said if part.kind is Kind.CALL)
    answer = _text([part for part in said if part.kind is Kind.ANSWER])
    if calls:
        answer = answer.strip()
    elif thoughts:
        answer = answer.lstrip()
    return ReadText(answer, _text(said), "".join(thoughts).strip(), calls)


def _text(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts)

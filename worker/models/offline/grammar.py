"""The offline grammar: text to a list of commands. Pure, linear in the input, and never raises.

The input is first freed of what must not be read as grammar: quoted text and the JSON of `call TOOL with {…}` become
marks. What is left is cut at its connectives ("and", "then", commas, full stops, new lines). A piece that begins like
a command starts one; any other belongs to the command before it, so "search for salt and pepper" is one search.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any

_MAX_COMMANDS = 100
"""More than any plan of a model may have (docs/decisions.md, D11); the rest is left unread."""


@dataclass(frozen=True, slots=True)
class Search:
    """Look for `query` in the knowledge base."""

    query: str


@dataclass(frozen=True, slots=True)
class Calculate:
    """Evaluate `parts`: texts, with None where the previous calculation's result goes."""

    parts: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get the document at `url`."""

    url: str


@dataclass(frozen=True, slots=True)
class TellTime:
    """Tell the time."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Let `seconds` pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WriteReport:
    """Write a report. `last_only`: from the last result instead of all. `about`: search for this first."""

    title: str = ""
    last_only: bool = False
    about: str = ""


@dataclass(frozen=True, slots=True)
class CallTool:
    """Call `tool` with `arguments` exactly as written."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A part that begins like a command and is none."""

    text: str


Command = Search | Calculate | Fetch | TellTime | Wait | WriteReport | CallTool | UnknownCommand

_MARK = re.compile("\x00(\\d+)\x00")
_CALL = re.compile(r"\b(?:call|use|run)\s+([A-Za-z][\w.\-/]{0,127})\s+with\s*(?=\{)", re.IGNORECASE)
_QUOTED = re.compile(r'"([^"]*)"|“([^“”]*)”|«([^«»]*)»|`([^`]*)`|(?<!\w)\'([^\'\n]*)\'(?!\w)')
_JOINT_WORD = r"(?:and|then|also|finally|next|afterwards|after that)\b[\s,]*"
_CONNECTIVE = re.compile(
    rf"(?<!\s)\s*(?:[;\n]|[,.!?](?=\s|$))[\s,;.!?]*(?:{_JOINT_WORD})*"
    rf"|(?<!\s)\s+(?:and|then|also|afterwards|after that)\b[\s,]*(?:{_JOINT_WORD})*",
    re.IGNORECASE,
)
_POLITE = re.compile(
    r"(?:(?:hello|hi|hey|and|please|first|now|kindly|also|then|finally|can you|could you|would you|will you"
    r"|i want you to|i would like you to|i'd like you to|i need you to|let's)[\s,]+)+",
    re.IGNORECASE,
)


class _Marks:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def add(self, value: Any) -> str:
        self.kept.append(value)
        return f"\x00{len(self.kept) - 1}\x00"

    def fill(self, text: str) -> str:
        return _MARK.sub(lambda mark: self._text(mark), text).strip()

    def literals(self, text: str) -> list[str]:
        return [self._text(mark).strip() for mark in _MARK.finditer(text)]

    def _text(self, mark: re.Match[str]) -> str:
        value = self.kept[int(mark.group(1))]
        return value if isinstance(value, str) else json.dumps(value)


def read_commands(text: str) -> list[Command]:
    """Return the commands found in `text`, in order; none when it holds no command of the grammar."""
    marks = _Marks()
    marked = _QUOTED.sub(lambda quoted: marks.add(_inside(quoted)), _mark_calls(text.replace("\x00", ""), marks))
    marked = re.sub(r"(?<!\s)\s*\n\s*", "\n", re.sub(r"[^\S\n]+", " ", marked))
    commands: list[Command] = []
    for clause in _clauses(marked):
        rest = "".join(clause.object)
        commands += clause.verb(rest, marks) or [UnknownCommand(marks.fill(f"{clause.begun}{rest}"))]
        if len(commands) >= _MAX_COMMANDS:
            break
    return commands[:_MAX_COMMANDS]


def _inside(quoted: re.Match[str]) -> str:
    return next(group for group in quoted.groups() if group is not None)


def _mark_calls(text: str, marks: _Marks) -> str:
    """Replace the JSON after each `call TOOL with` by a mark; JSON that does not parse stays as it is."""
    decoder = json.JSONDecoder()
    out: list[str] = []
    position = 0
    for found in _CALL.finditer(text):
        if found.start() < position:
            continue
        try:
            value, end = decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue
        out += [text[position : found.end()], marks.add(value)]
        position = end
    return "".join(out) + text[position:]


_Verb = Callable[[str, _Marks], list[Command]]


@dataclass(slots=True)
class _Clause:
    verb: _Verb
    begun: str
    object: list[str]
    open_brackets: int = 0

    def extend(self, *texts: str) -> None:
        self.object += texts
        self.open_brackets += sum(text.count("(") - text.count(")") for text in texts)


def _clauses(text: str) -> list[_Clause]:
    clauses: list[_Clause] = []
    start = 0
    joint = ""
    for connective in [*_CONNECTIVE.finditer(text), None]:
        end = connective.start() if connective else len(text)
        _add_piece(clauses, joint, text[start:end].strip())
        if connective:
            start, joint = connective.end(), connective.group()
    return clauses


def _add_piece(clauses: list[_Clause], joint: str, piece: str) -> None:
    if not piece:
        return
    clause = _clause_begun_by(piece)
    last = clauses[-1] if clauses else None
    if clause is not None:
        clauses.append(clause)
    elif last is None:
        return
    elif last.verb is _calculate and last.open_brackets <= 0 and _STARTS_LIKE_SUM.match(piece):
        clauses.append(_Clause(_calculate, "", [piece], piece.count("(") - piece.count(")")))
    elif not re.search(r"[.!?\n]", joint):
        # A new sentence that is no command is a remark, not more of the object before it.
        last.extend(joint, piece)


def _clause_begun_by(piece: str) -> _Clause | None:
    polite = _POLITE.match(piece)
    bare = piece[polite.end() :] if polite else piece
    for pattern, verb in _VERBS:
        found = pattern.match(bare)
        if found:
            clause = _Clause(verb, found.group(), [])
            clause.extend(bare[found.end() :])
            return clause
    return None


_STARTS_LIKE_SUM = re.compile(r"[\d(.\-+]")
_PLACE = r"(?:the\s+|our\s+|my\s+)?(?:handbook|knowledge(?:\s+base)?|docs?|documentation|documents|library|notes)"


def _search(rest: str, marks: _Marks) -> list[Command]:
    quoted = marks.literals(rest)
    if len(quoted) > 1 and not re.sub(r"(?i)\band\b|[,;\s]", "", _MARK.sub("", rest)):
        return [Search(query) for query in quoted if query]
    query = re.sub(rf"(?i)(?<!\s)\s+in\s+{_PLACE}$", "", rest.strip().rstrip("?!."))
    query = marks.fill(query)
    return [Search(query)] if query else []


_RESULT_WORD = re.compile(r"(?i)\b(?:it|that|this|the\s+result|the\s+previous\s+result)\b")
_OPERATORS = (
    (re.compile(r"(?i)\b(?:times|multiplied\s+by)\b"), "*"),
    (re.compile(r"(?i)\bdivided\s+by\b"), "/"),
    (re.compile(r"(?i)\bplus\b"), "+"),
    (re.compile(r"(?i)\bminus\b"), "-"),
)


def _calculate(rest: str, marks: _Marks) -> list[Command]:
    text = rest.strip().rstrip("?!.=").strip()
    if _MARK.fullmatch(text):
        return [Calculate((marks.fill(text),))]
    for pattern, operator in _OPERATORS:
        text = pattern.sub(operator, text)
    text = marks.fill(text)
    if not text:
        return []
    parts: list[str | None] = []
    for number, piece in enumerate(_RESULT_WORD.split(text)):
        parts += [piece] if number == 0 else [None, piece]
    return [Calculate(tuple(part for part in parts if part != ""))]


def _fetch(rest: str, marks: _Marks) -> list[Command]:
    words = marks.fill(rest).split()
    url = words[0].rstrip(".,;!?)") if words else ""
    return [Fetch(url)] if re.match(r"https?://\S", url) else []


_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(m\b|min(?:ute)?s?\b)?", re.IGNORECASE)


def _wait(rest: str, _marks: _Marks) -> list[Command]:
    found = _DURATION.match(rest)
    if not found:
        return []
    seconds = float(found.group(1)) * (60 if found.group(2) else 1)
    return [Wait(seconds)]


_TITLE = re.compile(r"(?i)\b(?:titled|entitled|called|named)\s(.+?)(?=\s(?:from|with|using|about|on|of|based)\b|$)")
_ONE = r"it|this|that|the\s(?:last\s|previous\s)?result"
_ALL = (
    r"them(?:\sall)?|these|those|both(?:\sof\sthem)?|all(?:\sof\s(?:it|them|these|those))?|everything"
    r"|(?:the|these|those|all|both)\s(?:\w+\s)?(?:results|findings|searches|hits|answers|passages)"
)
_SOURCES = re.compile(rf"(?i)\b(?:from|with|using|of|about|on|based\son)\s(?:(?P<one>{_ONE})|{_ALL})$")
_ABOUT = re.compile(r"(?i)\b(?:about|on)\s(.+)$")


def _report(rest: str, marks: _Marks) -> list[Command]:
    text = rest.strip().rstrip("?!.").strip()
    title = _TITLE.search(text)
    if title:
        text = (text[: title.start()] + text[title.end() :]).strip()
    sources = _SOURCES.search(text)
    if sources:
        text = text[: sources.start()].strip()
    about = _ABOUT.search(text)
    return [
        WriteReport(
            title=marks.fill(title.group(1)) if title else "",
            last_only=bool(sources and sources["one"]),
            about=marks.fill(about.group(1)) if about else "",
        )
    ]


def _call(rest: str, marks: _Marks) -> list[Command]:
    name, _, tail = rest.strip().partition(" ")
    found = _MARK.search(tail)
    arguments = marks.kept[int(found.group(1))] if found else {}
    return [CallTool(name, arguments)] if isinstance(arguments, dict) else []


_VERB_PATTERNS: tuple[tuple[str, _Verb], ...] = (
    (rf"(?:search|look|check|consult)\s+(?:in\s+|through\s+)?{_PLACE}\s+(?:for|about|on)\b", _search),
    (r"(?:search|look)\s+(?:for|up)\b", _search),
    (r"(?:search|research|find)\b(?:\s+(?:information|passages|out))?(?:\s+(?:for|about|on)\b)?", _search),
    (r"(?:calculate|compute|evaluate|work\s+out)\b", _calculate),
    (r"(?:what\s+is|what's|how\s+much\s+is)\s+(?=[\d(.\-+\s]*\d)(?=[^A-Za-z]*$)", _calculate),
    (r"(?:fetch|get|download|read|open|retrieve)\s+(?:the\s+)?(?:page\s+|url\s+|document\s+)?(?:at\s+|from\s+)?"
     r"(?=https?://|\x00)", _fetch),
    (r"what(?:\s+is|'s)?\s+(?:the\s+)?(?:current\s+)?(?:time|date)\b|what\s+day\s+is\s+it\b"
     r"|(?:tell|give|show|get)\s+(?:me\s+)?the\s+(?:current\s+)?(?:time|date)\b", lambda _rest, _marks: [TellTime()]),
    (r"(?:wait|pause|sleep)\s+(?:for\s+)?(?=\d)", _wait),
    (r"(?:write|create|make|compose|produce|prepare|draft)\s+(?:me\s+|us\s+)?(?:an?\s+|the\s+)?"
     r"(?:short\s+|brief\s+|little\s+|final\s+)?report\b", _report),
    (r"(?:call|use|run)\s+(?=[A-Za-z][\w.\-/]{0,127}(?:\s+with\s*\x00\d+\x00)?\s*$)", _call),
    (r"(?:call|use|run)\s+(?=[A-Za-z][\w.\-/]{0,127}\s+with\s*[{\[])", lambda _rest, _marks: []),  # no JSON object
)  # fmt: skip
_VERBS = tuple((re.compile(pattern, re.IGNORECASE), verb) for pattern, verb in _VERB_PATTERNS)


_EXAMPLES = (
    ("knowledge_search", 'search the handbook for "durable execution"'),
    ("calculate", "calculate (12 + 30) * 2"),
    ("http_fetch", "fetch https://example.org/"),
    ("now", "what time is it"),
    ("wait", "wait 5 seconds"),
    ("write_report", "write a report titled Findings from them"),
)


def help_text(offered: Set[str]) -> str:
    known = [example for tool, example in _EXAMPLES if tool in offered]
    if not known:
        return "None of the tools that my rules know is offered at the moment."
    lines = "\n".join(f"- {example}" for example in known)
    return (
        "I am not a language model; I follow a few fixed rules. You can ask for:\n\n"
        f"{lines}\n\n"
        'Join commands with "and", "then" or commas, and put what is to be taken literally between quotes.'
    )

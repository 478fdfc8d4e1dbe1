"""The grammar of references: `$<step>.output.<path>`, a typed pointer into an earlier step's structured output.

What lives here: parsing, formatting and finding. What a reference yields is `resolution.py`; whether it may stand
where it stands is `validation.py`. docs/decisions.md, D2, decides the grammar:

    whole string   $0.output.artifact.title      alias  $step[0].output.artifact.title
    whole output   $0.output                     inside a text  {{ $0.output }}
    array index    $0.output.items.0.id          also   $0.output.items[0].id
    any name       $0.output["a.b"].c            a JSON string in brackets, for a name with a dot in it
    inside a text  Read {{ $0.output.title }}.   a literal {{ is written \\{{
    literal        \\$0.output.title stands for the text $0.output.title

What is nearly a reference is malformed rather than text: its author meant one, and a tool that is called with
its letters does the wrong thing without a word. Nothing here recurses, so the depth of a value is limited by memory
alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from planq.shared.platform.values.pointers import Tokens, to_pointer

MAX_STEP = 2**64 - 1
"""Cases tr-010: an index beyond 64 bits is a syntax error."""

_HEAD = re.compile(r"\$(?:([0-9]+)|step\[([0-9]+)\])\.output")
_PATH = re.compile(r"((?:\[[0-9]+\])*)(?:\.([^\n]+))?")
_QUOTED = re.compile(r'\[("(?:[^"\\\n]|\\.)*")\]')
_STRICT = re.compile(r'\[([0-9]+)\]|\[("(?:[^"\\\n]|\\.)*")\]|\.([^.\[\]"\n]+)')
_INDEXED = re.compile(r"([^\[\]]*)((?:\[[0-9]+\])+)")
_EMBEDDED = re.compile(r"\\\{\{|\{\{((?:(?!\{\{|\}\}).)*)(\}\})?", re.DOTALL)
_ESCAPED = re.compile(r"(\s*)(\\*)(?=\$)")

_NEARLY = re.compile(
    r"\$\s*[-+]?(?:[0-9]+|steps?(?:\[[^\]\n]*\]|\s*[0-9]+)?)\s*(?:\.\s*|\[\s*['\"]?\s*)outputs?\b"
    r"|\$(?:[0-9]+|step\[[0-9]+\])(?:\.[a-z_]|\[)\S*\Z",
    re.IGNORECASE,
)
"""What a text begins with that was meant as a reference: a step and its output however they are spelt, or a step and
a field, and not a blank in it. A price (`$5.00`) and a variable (`$HOME`) are neither."""

_NEARLY_EMBEDDED = re.compile(r"\$\s*[-+]?(?:[0-9]|steps?\b)|\$\S*\.output\b|[0-9]+\.output\b|step\[[0-9]+\]\.")
"""The same between braces, where little else begins so."""

_BARE = re.compile(
    r"(?<![\w$\\])\$(?:[0-9]+|step\[[0-9]+\])\.output"
    r"(?:\.\w+(?:-\w+)*|\[(?:[0-9]+|\"[^\"\n]*\")\])*(?!\w)"
)
"""A reference as it stands in the middle of a text, where it is letters like all others."""

_SPECIAL = re.compile(r'[.\[\]"\n\\{}]')
_ODD = re.compile(r"[\s|'\"(){}\[\],;+*]|\$(?:[0-9]|step\[)")


@dataclass(frozen=True, slots=True)
class Reference:
    """Points at `path` inside the structured output of step `step` (the index of a call in its plan).

    Without a `path` it is the whole output.
    Each element of `path` is an object key or, where it is decimal and the value is an array, an index. Brackets are
    normalised away, so `str` gives the canonical form: `Reference.path` of `$1.output.a[0].b` is `("a", "0", "b")`.
    Names with a dot keep theirs. `is_quoted`: the author has put a name in quotation marks.
    """

    step: int
    path: tuple[str, ...]
    is_quoted: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        head = f"${self.step}.output"
        if not self.is_quoted:
            return ".".join((head, *self.path))
        return head + "".join(map(_written, self.path))


def _written(segment: str) -> str:
    if segment and not _SPECIAL.search(segment):
        return f".{segment}"
    # Braces would end an insertion.
    return f"[{json.dumps(segment)}]".replace("{", "\\u007b").replace("}", "\\u007d")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A reference, or something that claims to be one, at one place of a value.

    `pointer` is the RFC 6901 pointer of the string that holds it; `template` is its text as written, with the braces
    when `embedded` in a longer text. `reference` is None when the text is malformed.
    """

    pointer: str
    template: str
    reference: Reference | None
    embedded: bool = False


@dataclass(frozen=True, slots=True)
class Literal:
    """A piece of text that stands for itself, escapes already undone."""

    text: str


@dataclass(frozen=True, slots=True)
class Insertion:
    """A piece of text to be replaced by what `reference` yields; None when `template` is malformed."""

    template: str
    reference: Reference | None


def parse(text: str) -> Reference | None:
    """Return the reference that the whole of `text` is, or None when it is anything else.

    Nothing is trimmed: surrounding blanks make it plain text. Leading zeros of the step are allowed. None does not
    tell plain text from a malformed reference; `is_malformed` does.
    """
    if not text.startswith("$"):
        return None
    return _parse_known(text) if len(text) <= _KNOWN_CHARS else _parse(text)


def _parse(text: str) -> Reference | None:
    head = _HEAD.match(text)
    if head is None or "{{" in text or "}}" in text:
        return None
    digits = (head[1] or head[2]).lstrip("0") or "0"
    # The length is looked at first: int() refuses, with an exception, texts of thousands of digits.
    if len(digits) > 20 or int(digits) > MAX_STEP:
        return None
    if _QUOTED.search(text, head.end()):
        quoted = _quoted_path(text, head.end())
        return None if quoted is None else Reference(int(digits), quoted, is_quoted=True)
    match = _PATH.fullmatch(text, head.end())
    if match is None:
        return None
    indices = match[1][1:-1].split("][") if match[1] else ()
    return Reference(int(digits), (*indices, *_segments(match[2] or "")))


def _quoted_path(text: str, start: int) -> tuple[str, ...] | None:
    """Return the segments of a path with names in quotation marks; None where a part of it is no segment."""
    segments: list[str] = []
    while start < len(text):
        match = _STRICT.match(text, start)
        if match is None:
            return None
        try:
            segment = json.loads(match[2]) if match[2] else match[1] or match[3]
            segment.encode()
        except ValueError:
            return None
        if "\0" in segment:  # no output that is stored has one in a name, nor half an emoji
            return None
        segments.append(segment)
        start = match.end()
    return tuple(segments)


def is_malformed(text: str) -> bool:
    r"""True when `text` claims to be a reference and is none; what it inserts in braces plays no part.

    It does when it begins with `$` and contains `.output.`, and when it begins like a reference that is spelt wrong
    (`$0.OUTPUT.x`, `$0.output['x']`, `$0.value`, a blank in front). `\$…` claims nothing.
    """
    lead = text.lstrip()
    if not lead.startswith("$") or parse(text) is not None:
        return False
    outside = _EMBEDDED.sub("", lead) if "{{" in lead else lead
    return (text.startswith("$") and ".output." in outside) or _NEARLY.match(outside) is not None


def odd_segments(reference: Reference) -> list[str]:
    """Return the path segments that look like more than a name: blanks, filters, quotes, a second reference.

    They are names only where an output schema declares a field so called, or in quotation marks.
    """
    return [] if reference.is_quoted else [segment for segment in reference.path if _ODD.search(segment)]


def escaped(text: str) -> str:
    """Return `text` so written that it stands for itself; `pieces` of it is that literal, or None."""
    return shielded(text.replace("{{", "\\{{"))


def shielded(template: str) -> str:
    """Return a text with its insertions so written that its beginning is not taken for a reference."""
    match = _ESCAPED.match(template)
    if match is None or not _claims(template[match.end() :]):
        return template
    return f"{match[1]}\\{template[match.end(1) :]}"


def unescaped(text: str) -> str:
    """Return the text that one without insertions stands for; precondition: it holds none, and is no reference."""
    return "".join(piece.text for piece in pieces(text) or () if isinstance(piece, Literal)) or text


def pieces(text: str) -> tuple[Literal | Insertion, ...] | None:
    """Cut a text at its `{{ $N.output.path }}` insertions; None when it holds neither insertion nor escape.

    Blanks inside the braces do not count. Braces around what is nearly a reference, or that are not closed behind
    one, are malformed; around anything else they stay literal. `\\{{` becomes `{{`, and a backslash before a `$` with
    which the text would be a reference, or nearly, is taken away. A text that is one insertion and nothing else is
    still a text: it yields a string, while the bare `$N.output.path` keeps the JSON type.

    Precondition: the text is no reference and not malformed as a whole.
    """
    if "{{" not in text and not text.lstrip().startswith("\\"):
        return None
    return _cut_known(text) if len(text) <= _KNOWN_CHARS else _cut(text)


def _cut(text: str) -> tuple[Literal | Insertion, ...] | None:
    found: list[Literal | Insertion] = []
    literal: list[str] = []
    end = 0
    escape = _ESCAPED.match(text)
    if escape is not None and escape[2] and _claims(text[escape.end() :]):
        literal, end = [escape[1], escape[2][1:]], escape.end()
    for match in _EMBEDDED.finditer(text, end):
        inner = match[1]
        if inner is None:
            literal += (text[end : match.start()], "{{")
            end = match.end()
            continue
        reference = parse(inner.strip(" \t")) if match[2] else None
        if reference is None and _NEARLY_EMBEDDED.match(inner.strip()) is None:
            continue
        found += _literal([*literal, text[end : match.start()]])
        found.append(Insertion(match[0], reference))
        literal, end = [], match.end()
    if not found and not literal:
        return None
    return (*found, *_literal([*literal, text[end:]]))


def _claims(text: str) -> bool:
    return parse(text) is not None or is_malformed(text)


_KNOWN_CHARS = 200
"""A template is cut, and a reference parsed, when its plan is checked and compiled, and at each step. Long ones are
not kept for that."""

_cut_known = lru_cache(maxsize=2048)(_cut)

_parse_known = lru_cache(maxsize=2048)(_parse)


def find_references(value: Any) -> list[Occurrence]:
    """Return every reference and every malformed one in `value`, in document order; keys are never scanned."""
    return [found for tokens, text in walk_strings(value) for found in _occurrences(tokens, text)]


def bare_references(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the pointer and the text of each reference that stands in a longer text without braces.

    Such a text is valid and the reference stays as it is written, which its author seldom means.
    """
    for tokens, text in walk_strings(value):
        if "$" not in text or parse(text) is not None or is_malformed(text):
            continue
        for match in _BARE.finditer(_EMBEDDED.sub("", text)):
            yield to_pointer(tokens), match[0]


def redirected(value: Any, steps: Mapping[int, int]) -> Any:
    """Return a copy of `value` in which references to a step that is a key of `steps` point at the step it maps to.

    What is no reference stays as it is written. Precondition: not nested deeper than a plan may be.
    """
    if not steps:
        return value
    if isinstance(value, str):
        return _redirected_text(value, steps) if "$" in value else value
    if isinstance(value, Mapping):
        return {key: redirected(item, steps) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redirected(item, steps) for item in value]
    return value


def _redirected_text(text: str, steps: Mapping[int, int]) -> str:
    reference = parse(text)
    if reference is not None:
        return str(replace(reference, step=steps[reference.step])) if reference.step in steps else text
    if is_malformed(text):
        return text

    def put(match: re.Match[str]) -> str:
        inner = parse((match[1] or "").strip(" \t")) if match[2] else None
        if inner is None or inner.step not in steps:
            return match[0]
        return f"{{{{ {replace(inner, step=steps[inner.step])} }}}}"

    return _EMBEDDED.sub(put, text)


def walk_strings(value: Any) -> Iterator[tuple[Tokens, str]]:
    """Yield every string value inside `value` with its place, in document order."""
    stack: list[tuple[Tokens, Any]] = [(None, value)]
    while stack:
        tokens, item = stack.pop()
        if isinstance(item, str):
            yield tokens, item
        elif isinstance(item, dict):
            stack.extend(((tokens, str(key)), item[key]) for key in reversed(item))
        elif isinstance(item, (list, tuple)):
            stack.extend(((tokens, index), item[index]) for index in range(len(item) - 1, -1, -1))


def _segments(path: str) -> Iterator[str]:
    for segment in path.split(".") if path else ():
        match = _INDEXED.fullmatch(segment)
        if match is None:
            yield segment
            continue
        if match[1]:
            yield match[1]
        yield from match[2][1:-1].split("][")


def _literal(parts: list[str]) -> list[Literal | Insertion]:
    text = "".join(parts)
    return [Literal(text)] if text else []


def _occurrences(tokens: Tokens, text: str) -> Iterator[Occurrence]:
    if text.startswith("$") or text.lstrip().startswith("$"):
        reference = parse(text)
        if reference is not None or is_malformed(text):
            yield Occurrence(to_pointer(tokens), text, reference)
            return
    cut = pieces(text)
    if cut is None:
        return
    for piece in cut:
        if isinstance(piece, Insertion):
            yield Occurrence(to_pointer(tokens), piece.template, piece.reference, embedded=True)

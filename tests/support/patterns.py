"""The regular expressions of planq's own code, and hostile texts for each: made from the pattern itself.

A pattern is collected where it is compiled or given to a function of `re`, with the methods that are called on it. It
is run on growing repetitions of its own parts, and judged by how its CPU time grows, never by how long it takes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice, pairwise
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from time import thread_time
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = ("api", "worker", "shared", "deploy")

FUNCTIONS = frozenset({"compile", "sub", "subn", "match", "search", "fullmatch", "split", "findall", "finditer"})
METHODS = FUNCTIONS - {"compile"}
_A_METHOD = re.compile(rf"\.(?:{'|'.join(sorted(FUNCTIONS))})\b")
_OF_RE = re.compile(rf"\bre{_A_METHOD.pattern}")

_MOST_PUMPS = 60
_SIZE = 4_000
_FIRST_SIZES = (12, 16, 20, 24, 28, 32, 40, 64, 128, 512)
"""Small first, and in small steps: where the time doubles with each character, it must not come to a hundred."""

_SUSPICIOUS_SECONDS = 0.0005
_LONG_SECONDS = 0.05
"""What takes as long is compared with a quarter of it: four times as much would take a second or more, each time."""
_GROWTH = 8.0
"""Of four times the text: n log n comes to 5, n² to 16."""


@dataclass(frozen=True)
class Place:
    """Where a pattern is given to `re`, and the text of that expression; `methods` are called on its `name`."""

    path: str
    text: str
    name: str
    pattern: re.Pattern[Any] | None
    methods: frozenset[str]


def collected() -> list[Place]:
    """Return every pattern of the product; without a `pattern` where it is made of what is known later alone.

    Only files that name a method of a pattern are parsed: each process of `make test` waits for this.
    """
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    texts = {path: text for path in paths if _A_METHOD.search(text := path.read_text("utf-8"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    called: dict[str, set[str]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                name = node.value.id if isinstance(node.value, ast.Name) else getattr(node.value, "attr", "")
                called.setdefault(name, set()).add(node.attr)
    of_re = {path: tree for path, tree in trees.items() if _OF_RE.search(texts[path])}
    return [place for path, tree in of_re.items() for place in _places(path.relative_to(ROOT), tree, called)]


def _places(path: Path, tree: ast.Module, called: Mapping[str, set[str]]) -> Iterator[Place]:
    names = {
        id(inner): target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
        for inner in ast.walk(node.value)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FUNCTIONS):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
            continue
        function = node.func.attr
        methods = {function} if function != "compile" else called.get(names.get(id(node), ""), set()) or {"search"}
        position = {"sub": 3, "subn": 3, "split": 2}.get(function, 1 if function == "compile" else 2)
        flags = next((one.value for one in node.keywords if one.arg == "flags"), None)
        if flags is None and len(node.args) > position:
            flags = node.args[position]
        pattern = _evaluated(path, node.args[0], flags)
        yield Place(str(path), ast.unparse(node.args[0]), names.get(id(node), ""), pattern, frozenset(methods))


def _evaluated(path: Path, pattern: ast.expr, flags: ast.expr | None) -> re.Pattern[Any] | None:
    module = import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    try:
        given = [eval(ast.unparse(one), dict(vars(module)), {}) for one in (pattern, flags) if one is not None]
        return re.compile(*given)
    except NameError:
        return None


def parts_of(pattern: re.Pattern[Any]) -> list[str]:
    """Return texts that parts of a pattern match: of each node, of the beginnings and pairs of each sequence."""
    found: dict[str, None] = {}
    flags = pattern.flags & ~re.UNICODE if _is_bytes(pattern) else pattern.flags
    for sequence in _sequences(parser.parse(pattern.pattern, flags)):
        said = [_said(node) for node in sequence]
        candidates = [
            *("".join(said[:end]) for end in range(1, len(said) + 1)),
            *("".join(pair) for pair in pairwise(said)),
            *said,
        ]
        found.update(dict.fromkeys(one for one in candidates if one))
    return [*islice(found, _MOST_PUMPS), " ", "a", "0", "<", "\n"]


def _is_bytes(pattern: re.Pattern[Any]) -> bool:
    return isinstance(pattern.pattern, bytes)


def _sequences(tree: Iterable[Any]) -> Iterator[Sequence[Any]]:
    nodes = list(tree)
    yield nodes
    for _, argument in nodes:
        yield from _inside(argument)


def _inside(argument: Any) -> Iterator[Sequence[Any]]:
    if isinstance(argument, parser.SubPattern):
        yield from _sequences(argument)
    elif isinstance(argument, tuple | list):
        for one in argument:
            yield from _inside(one)


def _said(node: Any) -> str:
    """Return a text that a node matches, more or less: the most of each repetition up to two."""
    code, argument = node
    if code in (codes.LITERAL,):
        return chr(argument)
    if code in (codes.NOT_LITERAL,):
        return "a" if argument != ord("a") else "b"
    if code is codes.ANY:
        return "a"
    if code is codes.IN:
        return _of_class(argument)
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
        least, most, inner = argument
        return "".join(map(_said, inner)) * max(int(least), min(int(most), 2))
    if code is codes.SUBPATTERN:
        return "".join(map(_said, argument[3]))
    if code is codes.ATOMIC_GROUP:
        return "".join(map(_said, argument))
    if code is codes.BRANCH:
        return "".join(map(_said, argument[1][0]))
    return ""


_OF_CATEGORY = {
    codes.CATEGORY_DIGIT: "7",
    codes.CATEGORY_SPACE: " ",
    codes.CATEGORY_WORD: "w",
    codes.CATEGORY_NOT_DIGIT: "w",
    codes.CATEGORY_NOT_SPACE: "w",
    codes.CATEGORY_NOT_WORD: "-",
}


def _of_class(items: Sequence[Any]) -> str:
    if items[0][0] is codes.NEGATE:
        refused = {chr(one[1]) for one in items[1:] if one[0] is codes.LITERAL}
        return next((sign for sign in "a0 -<é\t" if sign not in refused), "")
    code, argument = items[0]
    if code is codes.LITERAL:
        return chr(argument)
    return chr(argument[0]) if code is codes.RANGE else _OF_CATEGORY.get(argument, "")


def explosion(pattern: re.Pattern[Any], methods: Iterable[str]) -> str | None:
    """Return the text on which a pattern's time grows faster than n log n, by what it repeats; None for none."""
    for part in parts_of(pattern):
        for end in ("", "\x00", "!\n"):
            for method in methods:
                if _explodes(pattern, method, part, end):
                    return f"{method} of {part!r} × n + {end!r}"
    return None


def _explodes(pattern: re.Pattern[Any], method: str, part: str, end: str) -> bool:
    for size in _FIRST_SIZES:
        if _seconds(pattern, method, part, end, size) > 0.1:
            return _seconds(pattern, method, part, end, size) > 0.1
    seconds = _seconds(pattern, method, part, end, _SIZE)
    if seconds < _SUSPICIOUS_SECONDS:
        return False
    size = _SIZE // 4 if seconds > _LONG_SECONDS else _SIZE
    return all(_grows(pattern, method, part, end, size) for _ in range(3))


def _grows(pattern: re.Pattern[Any], method: str, part: str, end: str, size: int) -> bool:
    """Return whether four times the text takes too much longer; asked again only where once says so."""
    small = max(min(_seconds(pattern, method, part, end, size) for _ in range(5)), 1e-6)
    return all(_seconds(pattern, method, part, end, 4 * size) > _GROWTH * small for _ in range(3))


def _seconds(pattern: re.Pattern[Any], method: str, part: str, end: str, size: int) -> float:
    text: Any = part * (size // len(part) + 1) + end
    if _is_bytes(pattern):
        text = text.encode("latin-1", "replace")
    begun = thread_time()
    if method in ("match", "fullmatch", "search"):
        getattr(pattern, method)(text)
    else:
        for _ in pattern.finditer(text):
            pass
    return thread_time() - begun

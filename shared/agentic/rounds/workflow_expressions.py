"""The expressions of Agently's workflow documents, translated to JMESPath where it can say the same.

    len(plan.steps) > 0            length(plan.steps) > `0`
    ${results[-1].result}          {{ results[-1].result }}
    a == "" && !(b || c[0] < 3)    !(a) && !((b) || (c[0] < `3`))

Left out are other functions than `len`, products and quotients, and indices that are no number. A text that is no
expression of this language is refused with the place in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planq.shared.platform.values.describe import excerpt

_TOKEN = re.compile(
    r"(?<!\s)\s*+(?:(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>&&|\|\||[=!<>]=|[-+*/!<>()\[\].,]))"
)
_INSERTION = re.compile(r"\$\{([^{}]*)(\}?)")
_CONSTANTS = {"true": "`true`", "false": "`false`", "null": "`null`", "nil": "`null`"}
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
_MAX_NESTING = 30

EMPTY_TEXT = "''"


class NotExpressible(ValueError):
    """What JMESPath, or planq, cannot say; or what is no expression at all."""


@dataclass(frozen=True, slots=True)
class WorkflowNames:
    """What the first names of paths stand for: `known` ones by their JMESPath, all others are refused with a hint."""

    known: Mapping[str, str]
    fields: Mapping[str, frozenset[str]]

    def path(self, name: str, rest: str) -> str:
        """Return the JMESPath of a path; `rest` are its fields and indices as written."""
        if name not in self.known:
            listed = ", ".join(sorted(self.known))
            raise NotExpressible(f"nothing is called {name!r} here; known names are {listed}")
        allowed = self.fields.get(name)
        named = re.findall(r"\.([A-Za-z_][A-Za-z0-9_]*)", rest)
        if allowed is not None and named and named[0] not in allowed:
            raise NotExpressible(f"{name} has no {named[0]!r} here; it has {', '.join(sorted(allowed))}")
        return self.known[name] + rest


@dataclass(frozen=True, slots=True)
class Comparison:
    """A conjunct of the form `name < number`: what a counter is compared with."""

    name: str
    sign: str
    number: int


def as_jmespath(text: str, names: WorkflowNames) -> str:
    """Return the JMESPath of an expression; raises `NotExpressible`."""
    return _Parser(text, names).whole()


def translated_text(text: str, names: WorkflowNames) -> str:
    """Return a text whose `${…}` are `{{ … }}`; raises `NotExpressible`."""
    done: list[str] = []
    end = 0
    for match in _INSERTION.finditer(text):
        if not match[2]:
            raise NotExpressible(f"{excerpt(text[match.start() :])} has no closing brace, or braces inside")
        done += [text[end : match.start()].replace("{{", "\\{{"), f"{{{{ {as_jmespath(match[1], names)} }}}}"]
        end = match.end()
    return "".join([*done, text[end:].replace("{{", "\\{{")])


def conjuncts(text: str) -> list[str]:
    """Return the parts of an expression between its outermost `&&`."""
    parts, depth, start = [], 0, 0
    for match in _TOKEN.finditer(text):
        sign = match["sign"]
        depth += (sign in ("(", "[")) - (sign in (")", "]"))
        if sign == "||" and depth == 0:
            return [text.strip()]
        if sign == "&&" and depth == 0:
            parts.append(text[start : match.start("sign")].strip())
            start = match.end()
    return [*parts, text[start:].strip()]


def comparison(text: str) -> Comparison | None:
    """Return the comparison of one name with a whole number that `text` is, None for anything else."""
    match = re.fullmatch(r"([A-Za-z_]\w*)\s*(<=|<)\s*(-?[0-9]{1,9})", text.strip())
    return None if match is None else Comparison(match[1], match[2], int(match[3]))


def incremented(text: str) -> str | None:
    """Return the name of which `text` is the next value, `${name + 1}`; None for anything else."""
    match = re.fullmatch(r"\$\{\s*([A-Za-z_]\w*)\s*\+\s*1\s*\}", text.strip())
    return None if match is None else match[1]


def identity(text: str) -> str | None:
    """Return the path that `text` is alone, `${path}`; None for anything else."""
    match = re.fullmatch(r"\$\{\s*([A-Za-z_][\w.]*)\s*\}", text.strip())
    return None if match is None else match[1]


class _Parser:
    def __init__(self, text: str, names: WorkflowNames) -> None:
        self._text = text
        self._names = names
        self._tokens = self._read()
        self._at = 0
        self._depth = 0

    def _read(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        place, text = 0, self._text.rstrip()
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                raise NotExpressible(f"{excerpt(text)} is no expression: character {place + 1} cannot be read")
            found.append((match.lastgroup, match[match.lastgroup]))
            place = match.end()
        return found

    def whole(self) -> str:
        made = self._or()
        if self._at < len(self._tokens):
            raise NotExpressible(f"{excerpt(self._text)} is no expression: {self._tokens[self._at][1]!r} is too much")
        return made

    def _sign(self, *signs: str) -> str | None:
        if self._at < len(self._tokens):
            kind, value = self._tokens[self._at]
            if kind == "sign" and value in signs:
                self._at += 1
                return value
        return None

    def _expect(self, sign: str) -> None:
        if self._sign(sign) is None:
            raise NotExpressible(f"{excerpt(self._text)} is no expression: {sign!r} is missing")

    def _joined(self, sign: str, part: Callable[[], str]) -> str:
        parts = [part()]
        while self._sign(sign):
            parts.append(part())
        return parts[0] if len(parts) == 1 else f" {sign} ".join(f"({one})" for one in parts)

    def _or(self) -> str:
        return self._joined("||", self._and)

    def _and(self) -> str:
        return self._joined("&&", self._compared)

    def _compared(self) -> str:
        left = self._sum()
        sign = self._sign(*_COMPARISONS)
        if sign is None:
            return left
        right = self._sum()
        if EMPTY_TEXT in (left, right) and sign in ("==", "!="):
            # What is empty there is null here.
            other = right if left == EMPTY_TEXT else left
            return f"!({other})" if sign == "==" else f"!(!({other}))"
        return f"{left} {sign} {right}"

    def _sum(self) -> str:
        made = self._unary()
        while (sign := self._sign("+", "-", "*", "/")) is not None:
            if sign in "*/":
                raise NotExpressible(f"{sign!r} cannot be said: expressions here only add and subtract")
            other = self._unary()
            if sign == "-":
                number = re.fullmatch(r"`([0-9.]+)`", other)
                if number is None:
                    raise NotExpressible("only a number can be subtracted here")
                other = f"`-{number[1]}`"
            made = f"sum([{made}, {other}])"
        return made

    def _unary(self) -> str:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise NotExpressible("the expression is nested too deeply")
        made = self._signed() or self._atom()
        self._depth -= 1
        return made

    def _signed(self) -> str | None:
        if self._sign("!"):
            return f"!({self._unary()})"
        if self._sign("-"):
            number = re.fullmatch(r"`([0-9.]+)`", self._unary())
            if number is None:
                raise NotExpressible("a minus stands before numbers only here")
            return f"`-{number[1]}`"
        if self._sign("("):
            made = self._or()
            self._expect(")")
            return f"({made})"
        return None

    def _atom(self) -> str:
        if self._at >= len(self._tokens):
            raise NotExpressible(f"{excerpt(self._text)} is no expression: it ends too early")
        kind, value = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return f"`{value}`"
        if kind == "text":
            return _raw_text(value)
        if kind == "sign":
            raise NotExpressible(f"{excerpt(self._text)} is no expression: {value!r} is out of place")
        if value in _CONSTANTS:
            return _CONSTANTS[value]
        if self._sign("("):
            return self._call(value)
        return self._path(value)

    def _call(self, name: str) -> str:
        if name != "len":
            raise NotExpressible(f"the function {name!r} cannot be said here; len can")
        inner = self._or()
        self._expect(")")
        return f"length({inner})" if inner in ("results", "plan.steps", "query") else f"length({inner} || `[]`)"

    def _path(self, name: str) -> str:
        rest = ""
        while (sign := self._sign(".", "[")) is not None:
            minus = "-" if sign == "[" and self._sign("-") else ""
            kind, value = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
            self._at += 1
            if sign == "." and kind == "name":
                rest += f".{value}"
            elif sign == "[" and kind == "number" and "." not in value:
                rest += f"[{minus}{value}]"
                self._expect("]")
            elif sign == "[":
                raise NotExpressible("an index is a whole number here")
            else:
                raise NotExpressible(f"{excerpt(self._text)} is no expression: a field is missing after '.'")
        return self._names.path(name, rest)


def _raw_text(token: str) -> str:
    inner = token[1:-1]
    if token[0] == '"':
        try:
            inner = json.loads(token)
        except ValueError:
            raise NotExpressible(f"the text {token} has an escape that JSON does not know") from None
    else:
        inner = inner.replace("\\'", "'")
    return "'" + inner.replace("'", "\\'") + "'"

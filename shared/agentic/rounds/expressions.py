"""JMESPath, the one expression language, with bounded evaluation.

Expressions come from authors and callers, their data from tools. So length and depth are bounded when one is stored,
and steps when it is evaluated: `[@, @] | [@, @] | …` doubles its value with every six characters. In a text,
`{{ expression }}` is replaced in one pass; inserted text is never read as a template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jmespath
from jmespath.exceptions import EmptyExpressionError, JMESPathError, ParseError
from jmespath.functions import Functions
from jmespath.lexer import Lexer
from jmespath.visitor import TreeInterpreter

from planq.shared.agentic.references.grammar import parse
from planq.shared.platform.errors import capped
from planq.shared.platform.values.describe import excerpt

MAX_EXPRESSION_BYTES = 1024
"""Maximum size of a stored expression."""

MAX_EXPRESSION_STEPS = 200_000
"""Maximum steps of one evaluation: about half a second."""

MAX_DECISION_STEPS = 5 * MAX_EXPRESSION_STEPS
"""Maximum steps of all rules of a loop between two rounds."""

MAX_TEMPLATES = 500
"""Maximum expressions in the texts of one value; reading one takes 60 µs."""

MAX_RENDERED_CHARS = 4 * 1024 * 1024
"""Maximum characters of all templates of one value, as JSON."""

_MAX_NESTING = 32
_MAX_TREE_DEPTH = 64
_CHARS_OF_A_STEP = 64

_BARE_NUMBER = re.compile(r"(?:[<>=]=?|!=)\s*-?[0-9]")

_OPENING = frozenset({"lparen", "lbracket", "lbrace", "filter"})
_CLOSING = frozenset({"rparen", "rbracket", "rbrace"})

_FIRST_AT_ROOT = frozenset(
    {"subexpression", "index_expression", "pipe", "projection", "value_projection", "filter_projection", "flatten"}
)
"""Only the first part of these nodes looks into the root value."""

TemplatePath = tuple[str | int, ...]


class ExpressionFailed(ValueError):
    """An expression that has no value here: it says why."""


class TooManySteps(ExpressionFailed):
    """An expression exceeds its maximum number of steps."""


def expression_defect(text: Any, names: Collection[str] | None = None) -> str | None:
    """Return why `text` may not be stored, or None; `names` are the allowed root names (None: any)."""
    if not isinstance(text, str):
        return f"expected an expression (JMESPath), found {excerpt(text)}"
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_EXPRESSION_BYTES:
        return f"the expression has {size} bytes; at most {MAX_EXPRESSION_BYTES} are taken"
    try:
        tree = _parsed(text)
    except ExpressionFailed as error:
        return str(error)
    found = next(_call_defects(tree), None)
    if found is not None or names is None:
        return found
    unknown = sorted({name for name in _root_names(tree) if name not in names})
    if unknown:
        listed = ", ".join(repr(capped(name, 60)) for name in unknown[:5])
        return f"the expression {excerpt(text)} names {listed}; known names are {', '.join(sorted(names))}"
    return None


class StepsLeft:
    """The steps that several evaluations may still take together."""

    def __init__(self) -> None:
        self._left = MAX_DECISION_STEPS

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooManySteps(f"the expressions take more than {MAX_DECISION_STEPS} steps together; select less")


def expression_value(
    text: str, value: Any, *, max_steps: int = MAX_EXPRESSION_STEPS, shared: StepsLeft | None = None
) -> Any:
    """Return what an expression selects of `value` (it may share parts), None for nothing.

    Raises `ExpressionFailed` if it does not parse, is nested too deeply, calls a function with wrong types, or takes
    more than `max_steps` (one for each part that is read or built); `shared` limits the total.
    """
    tree = _parsed(text)
    try:
        return _BoundedInterpreter(max_steps, shared).visit(tree, value)
    except ExpressionFailed:
        raise
    except RecursionError:
        raise ExpressionFailed(f"the expression {excerpt(text)} meets a value that is nested too deeply") from None
    except (JMESPathError, TypeError, ValueError, ArithmeticError) as error:
        # jmespath lets Python's own errors out of some functions, such as avg([]) and sort over mixed types.
        raise ExpressionFailed(f"the expression {excerpt(text)} failed: {capped(str(error), 300)}") from error


def holds(text: str, value: Any, steps: StepsLeft | None = None) -> bool:
    """Return whether the result is true: not false, null, nor an empty text, list or object."""
    found = expression_value(text, value, shared=steps)
    return found is not None and found is not False and found not in ("", [], {})


def template_defects(value: Any, names: Collection[str]) -> Iterator[tuple[TemplatePath, str]]:
    """Yield the defects of templates anywhere in `value`, each with its path; see `rendered`."""
    left = MAX_TEMPLATES
    for path, text in _texts(value, ()):
        if parse(text) is not None:
            yield (
                path,
                f"the reference {excerpt(text)} is not read here; write {{{{ results[0].result }}}} or the like",
            )
        for part in _parts(text):
            left -= not isinstance(part, str)
            if left < 0:
                yield path, f"there are more than {MAX_TEMPLATES} expressions; write fewer"
                return
            if isinstance(part, _OpenBraces):
                yield path, f"{excerpt(part.text)} has no closing }}}}; write \\{{{{ for the braces alone"
            elif isinstance(part, _Expression) and (defect := expression_defect(part.text, names)) is not None:
                yield path, defect


def rendered(value: Any, variables: Mapping[str, Any], steps: StepsLeft | None = None) -> Any:
    r"""Return `value` with every `{{ expression }}` in its texts replaced; `\\{{` means literal braces.

    A text that is one expression keeps the JSON type of its value; inside a text, null is empty and other values are
    compact JSON. Raises `ExpressionFailed`, also for more than `MAX_RENDERED_CHARS` in total.
    """
    return _Rendering(variables, StepsLeft() if steps is None else steps).value(value)


def without_expressions(value: Any, stand_in: Any) -> Any:
    """Return `value` with `stand_in` for each text with an expression; other texts as rendered."""
    if isinstance(value, str):
        is_open = any(not isinstance(part, str) for part in _parts(value))
        return stand_in if is_open else value.replace("\\{{", "{{")
    if isinstance(value, Mapping):
        return {key: without_expressions(inner, stand_in) for key, inner in value.items()}
    return [without_expressions(inner, stand_in) for inner in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class _Expression:
    """The text between braces, stripped."""

    text: str


@dataclass(frozen=True, slots=True)
class _OpenBraces:
    """The rest of a text after braces that are not closed."""

    text: str


def _parts(text: str) -> Iterator[str | _Expression | _OpenBraces]:
    """Yield plain texts, expressions, and an unclosed end; a regex would take quadratic time for open braces."""
    at = 0
    while (opened := text.find("{{", at)) >= 0:
        if opened > at and text[opened - 1] == "\\":
            yield text[at : opened - 1] + "{{"
            at = opened + 2
            continue
        if opened > at:
            yield text[at:opened]
        closed = text.find("}}", opened + 2)
        if closed < 0:
            yield _OpenBraces(text[opened:])
            return
        yield _Expression(text[opened + 2 : closed].strip())
        at = closed + 2
    if at < len(text):
        yield text[at:]


class _Rendering:
    def __init__(self, variables: Mapping[str, Any], steps: StepsLeft) -> None:
        self._variables = variables
        self._steps = steps
        self._left = MAX_RENDERED_CHARS

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {key: self.value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        return value

    def _text(self, text: str) -> Any:
        whole = text.strip()
        if whole.startswith("{{") and whole.endswith("}}") and len(whole) >= 4:
            inner = whole[2:-2]
            if "{{" not in inner and "}}" not in inner:
                found = expression_value(inner.strip(), self._variables, shared=self._steps)
                self._spend(found)
                return found
        return "".join(map(self._inserted, _parts(text)))

    def _inserted(self, part: str | _Expression | _OpenBraces) -> str:
        if isinstance(part, str):
            return part
        if isinstance(part, _OpenBraces):
            raise ExpressionFailed(f"{excerpt(part.text)} has no closing }}}}")
        return self._spend(expression_value(part.text, self._variables, shared=self._steps))

    def _spend(self, value: Any) -> str:
        """Return a value as text and count it: a short block can name a large value many times."""
        text = _inserted_text(value)
        self._left -= len(text)
        if self._left < 0:
            raise ExpressionFailed(f"the templates put together more than {MAX_RENDERED_CHARS} characters")
        return text


def _inserted_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ExpressionFailed(f"the value cannot be written into a text: {capped(str(error), 200)}") from None


def _texts(value: Any, path: TemplatePath) -> Iterator[tuple[TemplatePath, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*path, index))


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    too_deep = ExpressionFailed(f"the expression {excerpt(text)} is nested more than {_MAX_NESTING} levels deep")
    try:
        if _nesting(text) > _MAX_NESTING:
            raise too_deep
        tree = jmespath.compile(text).parsed
    except EmptyExpressionError:
        raise ExpressionFailed("expected an expression (JMESPath), found an empty text") from None
    except ParseError as error:
        raise ExpressionFailed(_parse_error(text, error)) from None
    except JMESPathError as error:
        raise ExpressionFailed(f"the expression {excerpt(text)} does not parse: {capped(str(error), 200)}") from None
    except RecursionError:
        raise too_deep from None
    if _is_deep(tree):
        raise too_deep
    return tree


def _nesting(text: str) -> int:
    """Return the depth of brackets: the parser recurses, and its tree keeps no parentheses."""
    depth = deepest = 0
    for token in Lexer().tokenize(text):
        depth += (token["type"] in _OPENING) - (token["type"] in _CLOSING)
        deepest = max(deepest, depth)
        if deepest > _MAX_NESTING:
            break
    return deepest


def _parse_error(text: str, error: ParseError) -> str:
    place = min(error.lex_position, len(text)) + 1 if isinstance(error.lex_position, int) else 1
    hint = "; numbers stand in backquotes, as in round > `3`" if _BARE_NUMBER.search(text) else ""
    if "&&" not in text and re.search(r"\b(?:and|or|not)\b", text):
        hint = "; write &&, || and ! for and, or and not"
    return f"the expression {excerpt(text)} does not parse at character {place}{hint}"


def _is_deep(tree: Any) -> bool:
    level = [tree]
    for _ in range(_MAX_TREE_DEPTH):
        level = [child for node in level for child in node["children"] if isinstance(child, dict)]
        if not level:
            return False
    return True


def _call_defects(tree: Any) -> Iterator[str]:
    """Yield calls of unknown functions, and with a wrong number of arguments."""
    for node in _nodes(tree):
        if node["type"] != "function_expression":
            continue
        name, given = node["value"], len(node["children"])
        known = Functions.FUNCTION_TABLE.get(name)
        if known is None:
            listed = ", ".join(sorted(Functions.FUNCTION_TABLE))
            yield f"there is no function {capped(name, 60)!r}; known functions are {listed}"
            continue
        signature = known["signature"]
        is_variadic = bool(signature) and signature[-1].get("variadic")
        if given < len(signature) or (given > len(signature) and not is_variadic):
            least = "at least " if is_variadic else ""
            yield f"the function {name} takes {least}{len(signature)} arguments, found {given}"


def _nodes(tree: Any) -> Iterator[Any]:
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack += [child for child in node["children"] if isinstance(child, dict)]


def _root_names(tree: Any) -> Iterator[str]:
    """Yield the names that are looked up in the root value."""
    kind = tree["type"]
    if kind == "field":
        yield tree["value"]
    elif kind in _FIRST_AT_ROOT:
        yield from _root_names(tree["children"][0])
    elif kind != "expref":
        for child in tree["children"]:
            if isinstance(child, dict):
                yield from _root_names(child)


class _BoundedInterpreter(TreeInterpreter):
    """The library's interpreter, counting what it reads and builds."""

    def __init__(self, max_steps: int, shared: StepsLeft | None) -> None:
        super().__init__()
        self._max = self._left = max_steps
        self._shared = shared
        self._library = Functions()

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self._spend(1)
        return super().visit(node, *args, **kwargs)

    def visit_multi_select_list(self, node: Any, value: Any) -> Any:
        return self._weighed(super().visit_multi_select_list(node, value))

    def visit_multi_select_dict(self, node: Any, value: Any) -> Any:
        return self._weighed(super().visit_multi_select_dict(node, value))

    def visit_flatten(self, node: Any, value: Any) -> Any:
        return self._weighed(super().visit_flatten(node, value))

    def visit_comparator(self, node: Any, value: Any) -> Any:
        operator = node["value"]
        left, right = (self.visit(child, value) for child in node["children"])
        if operator in ("eq", "ne"):
            self._weighed(left)
            return self.COMPARATOR_FUNC[operator](left, right)
        if _is_ordered(left) and _is_ordered(right):
            return self.COMPARATOR_FUNC[operator](left, right)
        return None

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        arguments = [self._weighed(self.visit(child, value)) for child in node["children"]]
        if node["value"] == "join" and len(arguments) == 2 and isinstance(arguments[0], str):
            glue, joined = arguments
            self._spend(len(glue) * len(joined if isinstance(joined, list) else ()) // _CHARS_OF_A_STEP)
        return self._library.call_function(node["value"], arguments)

    def _weighed(self, value: Any) -> Any:
        """Spend a step for each part of `value`: the same part may occur many times."""
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                self._spend(1 + len(item) // _CHARS_OF_A_STEP)
            elif isinstance(item, (dict, list)):
                self._spend(1 + len(item))
                stack.extend(item.values() if isinstance(item, dict) else item)
            else:
                self._spend(1)
        return value

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooManySteps(f"the expression takes more than {self._max} steps; select less")
        if self._shared is not None:
            self._shared.spend(steps)


def _is_ordered(value: Any) -> bool:
    return isinstance(value, (int, float, str)) and not isinstance(value, bool)

"""`calculate` and `json_query`: what depends on its arguments alone.

`calculate` parses an expression and evaluates nothing as code. Every operation is bounded before it is carried out
(bits of integers, size of the expression), so that no expression can hold up the event loop: the costliest one takes
about a millisecond.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema
from typing_extensions import TypedDict

from planq.shared.agentic.rounds.expressions import ExpressionFailed, TooManySteps, expression_value
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.kernel.states import Effect
from planq.shared.platform.errors import InvalidArguments, TimedOut, ToolFailed, capped
from planq.shared.platform.values.encoding import is_larger
from planq.worker.subprocesses import Failed, WorkRefused
from planq.worker.tools.declare import tool
from planq.worker.tools.services import ToolServices

Number = int | float

MAX_EXPRESSION_CHARS = 1_000
MAX_NODES = 300
MAX_BITS = 8_192
"""Longest integer, about 2 466 decimal digits; Python prints up to 4 300."""

_MAX_QUERY_STEPS = 10_000_000
"""Maximum steps of `json_query`; a query over half a million rows takes fewer."""

_INLINE_CHARS = 16 * 1024
_INLINE_STEPS = 2_000
"""Bounds of queries that run at once, in 5 ms at most; all others run in a process that can be killed."""

_QUERY_SECONDS = 28.0

CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}
MAX_FACTORIAL = 700
"""700! has 5 600 bits."""

_TYPOGRAPHIC = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})
_UNIT = re.compile(r"(?<![\w.])((?:\d[\d_]*+\.?+\d*+|\.\d++)(?:[eE][+-]?\d+)?+)\s*+([^\W\d_]+)")
_CURRENCY = re.compile(r"[$€£¥°]")
_PERCENT = re.compile(r"\d\s*%\s*(?:$|[+\-*/)]|of\b)")


class Calculated(TypedDict):
    """The value of an expression."""

    result: Annotated[Number, WithJsonSchema({"type": "number", "description": "The value of the expression."})]


class _NoValue(Exception):
    """Why an expression has no value here."""


@tool(effect=Effect.PURE, timeout_seconds=10)
async def calculate(
    expression: Annotated[
        str,
        Field(
            description="Plain numbers with + - * / // % ** and parentheses, functions such as sqrt(2), round(x, 2), "
            "max(a, b), log(x, base), and pi, e, tau. No units, no variables.",
            min_length=1,
            max_length=MAX_EXPRESSION_CHARS,
        ),
    ],
) -> Calculated:
    """Calculate the value of an arithmetic expression exactly as written; units are refused."""
    try:
        return {"result": evaluate(expression)}
    except _NoValue as error:
        raise InvalidArguments(f"calculate: {error}; found {capped(expression, 120)!r}") from error


def evaluate(expression: str) -> Number:
    """Return the value; integers stay integers, `/` gives a float. Raises `_NoValue` with the reason in words."""
    text = expression.translate(_TYPOGRAPHIC).strip()
    _refuse_units(text)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        hint = "use ** for powers" if "^" in text else "expected numbers, operators, parentheses and functions only"
        raise _NoValue(f"this is no arithmetic expression; {hint}") from error
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise _NoValue(f"the expression has more than {MAX_NODES} parts")
    try:
        return _checked(_value(tree.body))
    except ZeroDivisionError as error:
        raise _NoValue("division by zero") from error
    except OverflowError as error:
        raise _NoValue("a number on the way is too large") from error
    except (ValueError, TypeError) as error:
        raise _NoValue(f"it has no value ({error})") from error


def _refuse_units(text: str) -> None:
    unit = _UNIT.search(text)
    if unit is not None:
        raise _NoValue(
            f"units are not supported, and multiplication needs a sign: {unit.group(0)!r}; "
            "convert all quantities to plain numbers of one unit first"
        )
    if _CURRENCY.search(text):
        raise _NoValue("currency and degree signs are units, which are not supported; give plain numbers")
    if _PERCENT.search(text):
        raise _NoValue("percentages are not supported; write 0.2 * 50 for 20% of 50 (a % b is the remainder)")


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number):
            return _checked(number)
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            return -_value(operand) if isinstance(sign, ast.USub) else _value(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            return _checked(_OPERATORS[type(operation)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _checked(_FUNCTIONS[name](*(_value(argument) for argument in arguments)))
        case _:
            raise _NoValue(_why_not(node))


def _why_not(node: ast.expr) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return f"there is no function {capped(name, 40)!r} (known: {', '.join(sorted(_FUNCTIONS))})"
        case ast.Name(id=name):
            return f"{capped(name, 40)!r} is no number; only {', '.join(CONSTANTS)} have names"
        case ast.BinOp(op=ast.BitXor()):
            return "^ is not supported; use ** for powers"
        case ast.Tuple():
            return "a comma outside a function call; write 1000 instead of 1,000"
        case _:
            return "expected numbers, operators, parentheses and functions only"


def _checked(value: object) -> Number:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _NoValue("the value is no real number")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise _NoValue(f"an integer on the way has more than {MAX_BITS} bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise _NoValue("a number on the way is too large")
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        if abs(base) > 1:
            raise _NoValue(f"the power has more than {MAX_BITS} bits")
        exponent %= 2
    return _checked(base**exponent)


def _factorial(number: Number) -> int:
    if not isinstance(number, int) or not 0 <= number <= MAX_FACTORIAL:
        raise _NoValue(f"factorial takes an integer from 0 to {MAX_FACTORIAL}")
    return math.factorial(number)


def _round(number: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > 400:
        raise _NoValue("round takes a whole number of digits from -400 to 400")
    return round(number, digits) if digits else round(number)


_OPERATORS: Mapping[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}

_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs, "round": _round, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc,
    "min": min, "max": max, "pow": _power, "sqrt": math.sqrt, "cbrt": math.cbrt, "exp": math.exp,
    "log": math.log, "ln": math.log, "log2": math.log2, "log10": math.log10,
    "sin": math.sin, "cos": math.cos, "tan": math.tan,
    "asin": math.asin, "acos": math.acos, "atan": math.atan, "atan2": math.atan2,
    "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh,
    "degrees": math.degrees, "radians": math.radians, "hypot": math.hypot,
    "gcd": math.gcd, "lcm": math.lcm, "factorial": _factorial,
}  # fmt: skip


class Queried(TypedDict):
    """What an expression selects."""

    result: Annotated[Any, Field(description="What the expression selects; null when it selects nothing.")]


@tool(effect=Effect.PURE, timeout_seconds=30)
async def json_query(
    expression: Annotated[
        str,
        Field(
            description="A JMESPath expression, such as items[?price > `10`].name | sort(@)",
            min_length=1,
            max_length=2_000,
        ),
    ],
    data: Annotated[Any, Field(description="The JSON value to look into.")],
    services: ToolServices,
    context: ToolContext,
) -> Queried:
    """Select and reshape parts of a JSON value with a JMESPath expression."""
    try:
        if not is_larger(data, _INLINE_CHARS):
            with suppress(TooManySteps):
                return {"result": expression_value(expression, data, max_steps=_INLINE_STEPS)}
        given = (expression, data, _MAX_QUERY_STEPS)
        return {"result": await services.apart.call(context.tenant_id, "query", *given, seconds=_QUERY_SECONDS)}
    except (ExpressionFailed, WorkRefused) as error:
        raise InvalidArguments(f"json_query: {error}") from error
    except Failed as error:
        message = f"json_query: {error}{'' if error.is_starved else '; select less'}"
        raise (TimedOut(message) if error.is_late else ToolFailed(message)) from error

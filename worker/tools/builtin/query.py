"""`json_query`: JMESPath over any JSON value."""

from __future__ import annotations

from typing import Annotated, Any

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import Field
from typing_extensions import TypedDict

from shared.domain.errors import InvalidArguments, capped
from shared.domain.states import Effect
from worker.tools.declare import tool


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
) -> Queried:
    """Select and reshape parts of a JSON value with a JMESPath expression."""
    try:
        return {"result": jmespath.search(expression, data)}
    except (JMESPathError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        # jmespath lets Python's own errors out of some functions, such as avg([]) and sort over mixed types.
        raise InvalidArguments(
            f"json_query: the expression {capped(expression, 120)!r} failed: {capped(str(error), 300)}"
        ) from error

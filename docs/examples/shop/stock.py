"""The shop's tools for planq: what they change, they change in the shop's own database."""

from planq import ToolContext, ToolError, tool
from shared import database


@tool(effect="idempotent", pool="io")
def reserve(sku: str, count: int, context: ToolContext) -> dict[str, int]:
    """Take so many of an article out of the stock, once for each step."""
    with database() as connection, connection.transaction():
        made = "INSERT INTO reserved VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
        is_new = connection.execute(made, (context.idempotency_key, sku, count)).rowcount
        taken = "UPDATE stock SET left_over = left_over - %s WHERE sku = %s AND left_over >= %s RETURNING left_over"
        row = connection.execute(taken, (count if is_new else 0, sku, count if is_new else 0)).fetchone()
        if row is None:
            raise ToolError(f"there are not {count} of {sku}")
        return {"left_over": row[0]}


@tool(effect="pure")
async def confirm_order(order: int, left_over: int) -> str:
    """Say that an order will be sent."""
    return f"Order {order} will be sent; {left_over} are left."

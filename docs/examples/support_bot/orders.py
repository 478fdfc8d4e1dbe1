"""What the bot can look up."""

from planq import ToolError, tool

STATES = {"7": "on its way", "8": "delivered"}


@tool(effect="read")
async def order_status(number: str) -> str:
    """Say where an order is."""
    if number not in STATES:
        raise ToolError(f"there is no order {number}")
    return f"Order {number} is {STATES[number]}."

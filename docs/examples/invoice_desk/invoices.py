"""The tools of the invoice desk: read an invoice, compare it with its order, pay it."""

import re

from shared.pricing import MOST_CENTS
from typing_extensions import TypedDict

from planq import ToolContext, ToolError, tool

ORDERS = {"A-17": 84_000, "A-18": 250_000}
PAID: dict[str, int] = {}
SURE = {"type": "object", "properties": {"pay": {"type": "boolean"}}, "required": ["pay"]}


class Invoice(TypedDict):
    number: str
    order: str
    cents: int


class Payment(TypedDict):
    number: str
    cents: int


@tool(effect="pure")
async def read_invoice(text: str) -> Invoice:
    """Read number, order and sum out of the text of an invoice."""
    found = re.search(r"Invoice (\S+) for order (\S+): (\d+)[.,](\d\d) EUR", text)
    if found is None:
        raise ToolError("this is no invoice: expected 'Invoice … for order …: 12.34 EUR'")
    return {"number": found[1], "order": found[2], "cents": int(found[3]) * 100 + int(found[4])}


@tool(effect="read")
async def check_invoice(order: str, cents: int) -> dict[str, bool]:
    """Say whether an invoice asks for what was ordered."""
    if order not in ORDERS:
        raise ToolError(f"there is no order {order}")
    return {"agrees": ORDERS[order] == cents}


@tool(effect="idempotent")
async def pay_invoice(number: str, cents: int, agrees: bool, context: ToolContext) -> Payment:
    """Pay an invoice; a person decides where it does not agree with its order, or is large."""
    if not agrees or cents > MOST_CENTS:
        answer = await context.ask(f"Pay invoice {number} of {cents / 100:.2f} EUR?", SURE)
        if not answer["pay"]:
            raise ToolError(f"invoice {number} is not to be paid")
    await context.confirm()
    PAID[context.idempotency_key] = cents  # under this key a repeat pays nothing more
    return {"number": number, "cents": cents}


def plan(text: str) -> dict[str, object]:
    """Return the plan that takes an invoice from its text to its payment."""
    read = {"tool_name": "read_invoice", "arguments": {"text": text}}
    of_order = {"order": "$0.output.order", "cents": "$0.output.cents"}
    check = {"tool_name": "check_invoice", "arguments": of_order}
    wanted = {"number": "$0.output.number", "cents": "$0.output.cents", "agrees": "$1.output.agrees"}
    return {"calls": [read, check, {"tool_name": "pay_invoice", "arguments": wanted}]}


CLERK = {
    "name": "clerk",
    "description": "You find the invoice in a mail, and hand its text on.",
    "structured_output": True,
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "chained_tool": "read_invoice",
}
"""An agent whose answer a tool gets."""

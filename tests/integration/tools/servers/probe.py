"""An MCP server written with the SDK as its users do: `probe.py` (stdio) or `probe.py PORT` (streamable HTTP).

`PROBE_FOLDER` is where `hang` leaves the process id, so that a test can end the process in the middle of a call.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("probe")
arrived = 0
everybody = anyio.Event()


class Sum(BaseModel):
    """What comes of an addition."""

    total: int
    parts: list[int]


class Place(BaseModel):
    """Where somebody wants to go."""

    city: str


def wanted() -> Elicit[Place]:
    """Ask where to."""
    return Elicit("Where to?", Place)


@server.tool(structured_output=False)
def travel(place: Annotated[Place, Resolve(wanted)]) -> str:
    """Go where the person wants to."""
    return place.city


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
async def visit(ctx: Context) -> str:
    """Go where the person wants to, whom it asks while the call runs."""
    answer = await ctx.elicit("Where to?", Place)
    return answer.data.city if answer.action == "accept" else answer.action


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(numbers: list[int]) -> Sum:
    """Add numbers."""
    return Sum(total=sum(numbers), parts=numbers)


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True), structured_output=False)
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


@server.tool(name="fails-always.now", structured_output=False)
def fails() -> str:
    """Fail."""
    raise ToolError("the cupboard is bare")


@server.tool(structured_output=False)
def key(ctx: Context) -> str:
    """Tell the idempotency key of this call."""
    return str((ctx.request_context.meta or {}).get("dev.planq/idempotencyKey"))


@server.tool(structured_output=False)
def environment(name: str) -> str:
    """Tell a variable of the environment, or where the process runs."""
    known = {"cwd": os.getcwd(), "pid": str(os.getpid())}
    return known.get(name) or os.environ.get(name, "")


@server.tool(structured_output=False)
def header(name: str, ctx: Context) -> str:
    """Tell a header of this request."""
    return (ctx.headers or {}).get(name, "")


@server.tool(structured_output=False)
def headers(names: list[str], ctx: Context) -> str:
    """Tell headers of this request."""
    return "" if ctx.headers is None else ",".join(ctx.headers.get(name, "") for name in names)


@server.tool(structured_output=False)
def told(ctx: Context) -> str:
    """Tell what came beside the call."""
    return str((ctx.request_context.meta or {}).get("dev.planq/headers"))


@server.tool(structured_output=False)
async def work(parts: int, ctx: Context) -> str:
    """Do something in parts, and say how far it is."""
    for part in range(1, parts + 1):
        await ctx.report_progress(part, parts, f"part {part}")
    return "done"


@server.tool(structured_output=False)
async def learn(name: str, ctx: Context) -> str:
    """Offer one more tool from now on, and say that the tools have changed."""
    server.add_tool(lambda: name, name=name, description="Say its name.", structured_output=False)
    await ctx.notify_tools_changed()
    return name


@server.tool()
async def meet(parties: int) -> int:
    """Return once `parties` calls of this tool are here at the same time."""
    global arrived
    arrived += 1
    if arrived >= parties:
        everybody.set()
    await everybody.wait()
    return arrived


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def hang() -> int:
    """Never return."""
    folder = Path(os.environ["PROBE_FOLDER"])
    (folder / "hanging").write_text(str(os.getpid()), encoding="utf-8")
    try:
        await anyio.sleep_forever()
    finally:
        (folder / "cancelled").touch()
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()

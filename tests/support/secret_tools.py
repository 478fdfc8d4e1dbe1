"""A tool that asks a person for a secret, and says too much of it."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

from planq import ToolContext, tool
from tests.support.waiting import eventually

SIGN_UP = {
    "type": "object",
    "properties": {
        "user": {"type": "string"},
        "pin": {"type": "string", "format": "password", "writeOnly": True, "minLength": 8},
    },
    "required": ["user", "pin"],
}


@tool(name="sign_up", effect="read", timeout_seconds=60)
async def sign_up(context: ToolContext, folder: str) -> dict[str, Any]:
    """Ask for a PIN; go on once the folder has a file `go`."""
    given = await context.ask("Choose a PIN.", SIGN_UP)
    (Path(folder) / "begun").touch()
    await asyncio.to_thread(eventually, (Path(folder) / "go").exists, 60, every=0.05)
    digest = sha256(given["pin"].encode()).hexdigest()
    return {"user": given["user"], "echo": f"your PIN is {given['pin']}", "sha256": digest}

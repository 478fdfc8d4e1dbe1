"""Tools of a pool of their own, one for a loop and one for processes."""

from __future__ import annotations

import os
import threading

from planq.worker.tools import ToolContext, tool
from tests.faults.tools import OUTPUT, _folder, entered


@tool(effect="read", pool="gpu", output_schema=OUTPUT)
async def gpu_train(text: str, context: ToolContext) -> dict[str, str]:
    """Say in which process it ran."""
    entered(context)
    return {"text": f"{os.getpid()} {threading.current_thread() is threading.main_thread()} {text}"}


@tool(effect="read", pool="gpu", output_schema=OUTPUT)
def gpu_kill(text: str, context: ToolContext) -> dict[str, str]:
    """Kill its process, unless somebody says that it may live."""
    entered(context)
    if not (_folder() / "live").exists():
        (_folder() / "live").touch()
        os._exit(9)
    return {"text": f"{os.getpid()} {text}"}

"""A process that works apart: it reads work from its input, answers on its output, and ends with its parent.

A message is its length in eight bytes, and then: of the parent a pickle of the work's name and arguments, of this
process JSON, `{"value": …}` or `{"refused": why}`. What it reads comes from strangers: it has none of the worker's
secrets and little memory, goes last where processors are short, and nothing that it says is unpickled.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import select
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from planq.shared.agentic.rounds.expressions import ExpressionFailed, expression_value
from planq.shared.platform.launcher import die_with
from planq.worker.subprocesses.html_text import read_page

MEMORY_BYTES = 512 * 1024 * 1024
"""Maximum size of data; work that needs more fails here alone."""

_NICENESS = 10
_IDLE_SECONDS = 60.0


def select_from(expression: str, data: Any, max_steps: int) -> Any:
    return expression_value(expression, data, max_steps=max_steps)


WORK: Mapping[str, Callable[..., Any]] = {"page": read_page, "query": select_from}
"""The kinds of work, by name."""


def reply_to(asked: bytes) -> bytes:
    """Carry out one piece of work; the answer is JSON."""
    name, arguments = pickle.loads(asked)  # noqa: S301 - from the parent
    try:
        return json.dumps({"value": WORK[name](*arguments)}).encode()
    except ExpressionFailed as error:
        return json.dumps({"refused": str(error)}).encode()
    except (MemoryError, RecursionError, ValueError) as error:
        return json.dumps({"refused": f"it cannot be worked on here ({type(error).__name__})"}).encode()


def main() -> None:
    """Answer until the parent ends, or asks for nothing for a while."""
    die_with(int(sys.argv[1]), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while select.select([source], [], [], _IDLE_SECONDS)[0]:
        head = source.read(8)
        if len(head) < 8:
            return
        said = reply_to(source.read(int.from_bytes(head, "big")))
        sink.write(len(said).to_bytes(8, "big") + said)
        sink.flush()
        del said
        gc.collect()


if __name__ == "__main__":
    main()

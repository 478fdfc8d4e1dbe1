"""How much of planq one step passes through, from the body of its tool to the body of the next one's."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import planq
from planq.shared.kernel.states import JobStatus
from planq.worker.tools import tool
from tests.support.harness import Harness, ScriptedModel, make_tool

CALLS, FUNCTIONS, FILES = 98, 77, 26
"""What a step may pass through: calls, also of a coroutine that goes on; functions; files. Only ever less."""

STEPS = 20

_PACKAGE = f"{Path(planq.__file__).parent}/"


def test_a_step_passes_through_no_more_than_it_did(play: Callable[..., Any]) -> None:
    entered: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PACKAGE) and not code.co_name.startswith("<"):
            entered.append(f"{code.co_filename.removeprefix(_PACKAGE)}:{code.co_firstlineno} {code.co_name}")

    @tool(effect="read")
    async def mark(number: int) -> dict[str, int]:
        """Begin a new passage."""
        entered.append("")
        return {"number": number}

    async def scenario(harness: Harness) -> None:
        numbers = [f"${index - 1}.output.number" if index else 0 for index in range(STEPS)]
        calls = [{"tool_name": "mark", "arguments": {"number": number}} for number in numbers]
        sys.setprofile(note)
        try:
            job, _ = await harness.run(plan={"calls": calls})
        finally:
            sys.setprofile(None)
        assert job["status"] == JobStatus.COMPLETED

    play(scenario, ScriptedModel(), [make_tool(mark)])
    begun = [place for place, name in enumerate(entered) if not name]
    passages = [entered[a + 1 : b] for a, b in pairwise(begun)]
    passed = Counter(name for passage in passages for name in set(passage))
    often = sorted(name for name, count in passed.items() if count >= 0.9 * len(passages))
    calls = median(map(len, passages))
    files = {name.partition(":")[0] for name in often}
    found = (calls, len(often), len(files))
    assert len(passages) == STEPS - 1
    assert all(a <= b for a, b in zip(found, (CALLS, FUNCTIONS, FILES), strict=True)), (found, "\n".join(often))

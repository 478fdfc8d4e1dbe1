"""B12: ParallelQA through planq, and through a sequential ReAct loop that makes the same calls to the same model.

The loop is as quick as one can be: the tools are called in this process, nothing is stored, nothing is checked. Each
question's makespan runs from sending it to holding its answer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.bench.client import Client, run
from tests.bench.context import Context
from tests.bench.figures import Bound, Figure
from tests.bench.jobs import finished
from tests.bench.parallelqa import COMPUTE, SEARCH, Question, questions
from tests.bench.tools import compute, search

LOOPS_AT_ONCE = 8
"""Loops only wait, so a few beside one another hardly slow each other; the run's `Makespans.loss` says how much."""

SPEED_UP, OVER_CRITICAL = 2.3, 1.10
QUICK_QUESTIONS = 12
MAX_STEPS = 16
"""Two steps for each of five things, and a join: more than a model's plan may have by default."""

CRITICAL, REACT = "critical path", "ReAct loop"

_TOOLS: Mapping[str, Any] = {SEARCH: search, COMPUTE: compute}
_OFFERED = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in _TOOLS]


@dataclass(frozen=True, slots=True)
class Makespans:
    """Seconds that each question took, beside the least that it could take."""

    seconds: Sequence[float]
    ideal: Sequence[float]

    @property
    def total(self) -> float:
        """The seconds of all questions together."""
        return sum(self.seconds)

    @property
    def loss(self) -> float:
        """All seconds over the least that they could be."""
        return self.total / sum(self.ideal)


def measure(context: Context) -> list[Figure]:
    """Ask every question (a quick run: some of each width) of planq, one at a time, and of the loop."""
    asked = questions(QUICK_QUESTIONS if context.quick else None)
    with model_server() as model_url:
        env = {
            "PLANQ_MODEL": "openai:parallelqa",
            "PLANQ_MODEL_BASE_URL": f"{model_url}/v1",
            "PLANQ_MAX_TOOL_STEPS": str(MAX_STEPS),
        }
        with context.planq(env=env) as stack:
            planq, loop = run(_both(stack.url, model_url, asked))
    note = f"{len(asked)} questions; the loop alone takes {loop.loss:.3f} × its latencies"
    count = len(asked)
    return [
        Figure(
            "B12 ParallelQA: a question",
            1000 * planq.total / count,
            "ms",
            peers={REACT: 1000 * loop.total / count},
            limits={CRITICAL: 1000 * sum(planq.ideal) / count},
            bounds=[Bound(OVER_CRITICAL, CRITICAL)],
            samples=[1000 * one for one in planq.seconds],
            note=note,
        ),
        Figure(
            "B12 ParallelQA: faster than ReAct",
            loop.total / planq.total,
            "×",
            bounds=[Bound(SPEED_UP, at_most=False)],
            more_is_better=True,
            note=note,
        ),
    ]


async def _both(planq_url: str, model_url: str, asked: Sequence[Question]) -> tuple[Makespans, Makespans]:
    async with Client(planq_url) as planq, Client(model_url) as model:
        await through_planq(planq, questions(4))
        return await through_planq(planq, asked), await through_react(model, asked)


@contextmanager
def model_server() -> Iterator[str]:
    """Run the canned model in a process of its own; yields its address."""
    command = [sys.executable, "-m", "tests.bench.model_server"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2], text=True)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the model server ended with {process.wait()}; standard error says why")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def through_planq(client: Client, asked: Sequence[Question]) -> Makespans:
    """Submit one question after the other and wait for each answer."""
    seconds = []
    for question in asked:
        job, taken = await finished(client, {"input": question.text})
        seconds.append(taken)
        if job["answer"] != question.answer or len(job["steps"]) != 2 * question.branch + 1:
            raise RuntimeError(f"expected {2 * question.branch + 1} steps and {question.answer!r}, found {job}")
    return Makespans(seconds, [question.critical_path for question in asked])


async def through_react(model: Client, asked: Sequence[Question]) -> Makespans:
    """Answer each question by a loop of its own, `LOOPS_AT_ONCE` beside one another."""
    places = asyncio.Semaphore(LOOPS_AT_ONCE)

    async def timed(question: Question) -> float:
        async with places:
            begun = perf_counter()
            answer = await react(model, question.text)
            if answer != question.answer:
                raise RuntimeError(f"expected {question.answer!r}, found {answer!r}")
            return perf_counter() - begun

    seconds = await asyncio.gather(*(timed(question) for question in asked))
    return Makespans(seconds, [question.in_turn for question in asked])


async def react(model: Client, question: str) -> str:
    """Ask the model what to do, do it, show it what came of it, until it answers (Yao et al., 2023)."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    while True:
        asked = {"model": "parallelqa", "messages": messages, "tools": _OFFERED}
        said = (await model.post("/v1/chat/completions", asked)).json()["choices"][0]["message"]
        if not said.get("tool_calls"):
            return str(said["content"])
        (call,) = said["tool_calls"]
        function = call["function"]
        observed = await _TOOLS[function["name"]](**json.loads(function["arguments"]))
        messages += [
            said,
            {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(observed.model_dump())},
        ]

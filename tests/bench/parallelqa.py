"""ParallelQA: questions that compare two to five things, each to be looked up and then computed with.

The questions, with the width of each, are those of LLMCompiler (Kim et al., 2023; `tests/data/parallelqa`, MIT). What
a model would say and what the tools would find is canned, and takes the time that the benchmark's issue names, scaled
down: only time is measured here. Pure; `tools.py` has the tools, `model_server.py` the model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "parallelqa" / "questions.json"

SCALE = 0.1
MODEL_SECONDS = 1.5 * SCALE
SEARCH_SECONDS = 0.8 * SCALE
COMPUTE_SECONDS = 0.3 * SCALE

SEARCH, COMPUTE, JOIN = "qa_search", "qa_compute", "qa_join"


@dataclass(frozen=True, slots=True)
class Question:
    """One question, its answer, and how many things it compares."""

    text: str
    answer: str
    branch: int

    @property
    def critical_path(self) -> float:
        """Seconds that no order of the calls can beat: plan, one pair, answer. The join costs nothing."""
        return MODEL_SECONDS + SEARCH_SECONDS + COMPUTE_SECONDS + MODEL_SECONDS

    @property
    def in_turn(self) -> float:
        """Seconds of a ReAct loop that loses no time: the model before every call, and once more to answer."""
        return self.branch * (2 * MODEL_SECONDS + SEARCH_SECONDS + COMPUTE_SECONDS) + MODEL_SECONDS


def questions(count: int | None = None) -> list[Question]:
    """Return all questions, or `count` of them in which every width occurs as often as in all, give or take one."""
    with DATA.open(encoding="utf-8") as file:
        found = [Question(one["question"], one["answer"], one["branch"]) for one in json.load(file)]
    if count is None or count >= len(found):
        return found
    # Every n-th of the questions in the order of their widths.
    found.sort(key=lambda question: question.branch)
    return [found[index * len(found) // count] for index in range(count)]


def plan_calls(question: Question) -> list[dict[str, Any]]:
    """Return the plan's calls: for each thing a search and a computation over what it found, then a join of all."""
    calls: list[dict[str, Any]] = []
    for thing in range(question.branch):
        calls.append({"tool_name": SEARCH, "arguments": {"query": question.text, "thing": thing}})
        calls.append({"tool_name": COMPUTE, "arguments": {"value": f"${2 * thing}.output.value"}})
    values = [f"${2 * thing + 1}.output.value" for thing in range(question.branch)]
    return [*calls, {"tool_name": JOIN, "arguments": {"values": values}}]


def next_action(question: Question, observed: list[dict[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    """Return the call that a ReAct loop makes after so many observations; None when the model can answer.

    The same searches and computations as the plan's, one after the other. The model reads the values off its
    conversation and compares them as it answers, so it makes no call for the join.
    """
    thing, is_computed = divmod(len(observed), 2)
    if thing == question.branch:
        return None
    if is_computed:
        return COMPUTE, {"value": observed[-1]["value"]}
    return SEARCH, {"query": question.text, "thing": thing}

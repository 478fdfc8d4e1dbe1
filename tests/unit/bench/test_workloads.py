"""The pure parts of the workloads: their plans, ParallelQA's schedules, what the canned model says, percentiles."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from planq.shared.agentic.plan.compile import CompiledPlan, compile_plan
from planq.shared.agentic.plan.document import parse_plan
from planq.shared.agentic.plan.validation import validate_plan
from planq.shared.agentic.tools.contract import ToolContext
from planq.shared.agentic.tools.definition import ToolDefinition
from tests.bench import parallelqa, plans, tools
from tests.bench.children import fan_out
from tests.bench.history.filling import copying
from tests.bench.model_server import message_for, streamed, whole
from tests.bench.parallelqa import COMPUTE, SEARCH, Question, questions
from tests.bench.polling import percentile
from tests.bench.react import Makespans
from tests.support.harness import make_tool


def definitions() -> dict[str, ToolDefinition]:
    offered = (tools.noop, tools.wait, tools.join, tools.search, tools.compute, tools.compare)
    found = [*(make_tool(function).definition for function in offered), fan_out.definition]
    return {definition.name: definition for definition in found}


def compiled(raw: Any) -> CompiledPlan:
    plan = parse_plan(raw)
    assert validate_plan(plan, definitions(), max_steps=10_000) == []
    return compile_plan(plan, definitions())


def test_waiting_steps_wait_for_nobody() -> None:
    plan = compiled(plans.waiting(5, 1.0)["plan"])
    assert [step.depends_on for step in plan.steps] == [()] * 5
    assert {step.arguments["seconds"] for step in plan.steps} == {1.0}


def test_a_fan_in_joins_every_leaf() -> None:
    *leaves, join = compiled(plans.fan_in(7)["plan"]).steps
    assert [leaf.depends_on for leaf in leaves] == [()] * 7
    assert join.depends_on == tuple(range(7))


def test_a_fan_out_is_one_step_of_as_many_children() -> None:
    (step,) = compiled(plans.children(7)["plan"]).steps
    context = ToolContext("job", 0, 1, "bench_children", "default", "", "job", "job", "")
    delegated = asyncio.run(fan_out.call(dict(step.arguments), context))
    assert step.kind is fan_out.definition.kind
    assert (len(delegated.children), delegated.max_parallel) == (7, 7)


def test_chains_are_as_many_and_as_long_as_asked() -> None:
    plan = compiled(plans.chains(12, 4)["plan"])
    assert [step.depends_on for step in plan.steps[:3]] == [()] * 3
    assert [step.depends_on for step in plan.steps[3:]] == [(index,) for index in range(9)]
    assert max(step.path for step in plan.steps) == 3


def test_chains_that_do_not_come_out_even_are_refused() -> None:
    with pytest.raises(ValueError, match="10 steps are no whole number of chains of 4"):
        plans.chains(10, 4)


def test_the_questions_are_those_of_the_published_set() -> None:
    widths = Counter(question.branch for question in questions())
    assert widths == {2: 21, 3: 31, 4: 31, 5: 30}


def test_a_few_questions_have_every_width() -> None:
    assert {question.branch for question in questions(4)} == {2, 3, 4, 5}
    assert len(questions(12)) == 12
    assert len(set(questions(12))) == 12


@pytest.mark.parametrize("question", questions(8), ids=lambda question: f"branch-{question.branch}")
def test_a_plan_of_parallelqa_is_as_wide_as_its_question(question: Question) -> None:
    plan = compiled({"calls": parallelqa.plan_calls(question)})
    names = Counter(step.tool_name for step in plan.steps)
    assert names[SEARCH] == names[COMPUTE] == question.branch == len(plan.steps[-1].depends_on)
    assert max(step.path for step in plan.steps) == 2


@pytest.mark.parametrize("branch", [2, 5])
def test_react_makes_the_calls_of_the_plan_one_after_the_other(branch: int) -> None:
    question = Question("Which?", "that one", branch)
    observed: list[dict[str, Any]] = []
    made = []
    while (action := parallelqa.next_action(question, observed)) is not None:
        made.append(action)
        observed.append({"value": 10 * len(observed)})
    assert [name for name, _ in made] == [SEARCH, COMPUTE] * branch
    assert [arguments["value"] for name, arguments in made if name == COMPUTE] == [20 * i for i in range(branch)]
    per_tool = parallelqa.SEARCH_SECONDS + parallelqa.COMPUTE_SECONDS
    assert question.in_turn == pytest.approx((2 * branch + 1) * parallelqa.MODEL_SECONDS + branch * per_tool)


def asked(*roles: tuple[str, str], tools: tuple[str, ...] = ()) -> dict[str, Any]:
    offered = [{"type": "function", "function": {"name": name}} for name in tools]
    return {"messages": [{"role": role, "content": content} for role, content in roles], "tools": offered}


def test_the_canned_model_plans_acts_and_answers() -> None:
    question = Question("Which is larger?", "the second", 2)
    known = {question.text: question}
    planned = message_for(asked(("system", "Plan."), ("user", question.text), tools=("__planning__",)), known)
    arguments = json.loads(planned["tool_calls"][0]["function"]["arguments"])
    assert arguments["calls"] == parallelqa.plan_calls(question)
    begun = message_for(asked(("user", question.text), tools=(SEARCH, COMPUTE)), known)
    assert begun["tool_calls"][0]["function"]["name"] == SEARCH
    seen = [("tool", json.dumps({"value": index})) for index in range(4)]
    ended = message_for(asked(("user", question.text), *seen, tools=(SEARCH, COMPUTE)), known)
    answered = message_for(asked(("user", question.text), ("user", "## Results")), known)
    assert ended["content"] == answered["content"] == "the second"


def test_a_canned_reply_says_the_same_whole_and_streamed() -> None:
    message = {"role": "assistant", "content": "the second"}
    *events, end = [line.removeprefix("data: ") for line in streamed(message).decode().split("\n\n") if line]
    assert end == "[DONE]"
    first, *_, last = map(json.loads, events)
    assert first["choices"][0]["delta"]["content"] == json.loads(whole(message))["choices"][0]["message"]["content"]
    assert last["usage"]["total_tokens"] == 120


def test_makespans_are_compared_with_what_they_could_be() -> None:
    took = Makespans([0.5, 0.6], [0.4, 0.4])
    assert took.total == pytest.approx(1.1)
    assert took.loss == pytest.approx(1.375)


@pytest.mark.parametrize(("rank", "expected"), [(50, 10), (95, 19), (100, 20), (1, 1)])
def test_percentiles_are_values_that_occurred(rank: float, expected: int) -> None:
    assert percentile([20, *range(1, 20)], rank) == expected


def test_copies_of_rows_get_ids_times_and_tenants_of_their_own() -> None:
    steps = [("job_id", "uuid"), ("index", "integer"), ("tenant_id", "text"), ("worker_id", "uuid")]
    assert copying("steps", steps).as_string() == (
        'INSERT INTO "steps" ("job_id", "index", "tenant_id", "worker_id") '
        'SELECT c.new_id, t."index", c.tenant_id, t."worker_id" '
        'FROM copied c JOIN "steps" t ON t."job_id" = c.old_id ORDER BY c.n'
    )
    jobs = copying("jobs", [("id", "uuid"), ("root_job_id", "uuid"), ("finished_at", "timestamp with time zone")])
    assert 'SELECT c.new_id, history_id(t."root_job_id", c.n, c.shift), CASE WHEN' in jobs.as_string()
    assert """t."id" || '-' || c.n""" in copying("artifacts", [("id", "text")]).as_string()

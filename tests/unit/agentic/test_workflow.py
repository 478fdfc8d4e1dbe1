"""Workflow documents as a front end: what each field becomes, and that nothing is dropped without a word."""

from __future__ import annotations

from typing import Any

import pytest

from planq.shared.agentic.rounds.expressions import expression_defect
from planq.shared.agentic.rounds.workflow import (
    NotExpressible,
    WorkflowNames,
    as_jmespath,
    import_workflow,
    translated_text,
)
from planq.shared.platform.errors import InvalidRequest

NAMES = WorkflowNames(
    {"results": "results", "plan": "plan", "query": "query", "n": "round", "channel": "vars.channel"},
    {"plan": frozenset({"steps"}), "results": frozenset({"result", "error"})},
)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("len(plan.steps) > 0", "length(plan.steps) > `0`"),
        ("len(channel) == 2", "length(vars.channel || `[]`) == `2`"),
        ("n < 3 && len(results) >= 1", "(round < `3`) && (length(results) >= `1`)"),
        ("n + 1 - 2 > -1", "sum([sum([round, `1`]), `-2`]) > `-1`"),
        ("results[-1].error != ''", "!(!(results[-1].error))"),
        ('results[0].error == ""', "!(results[0].error)"),
        ("!(n == 1 || n == 2)", "!(((round == `1`) || (round == `2`)))"),
        ('query == "it\'s" || channel == nil', "(query == 'it\\'s') || (vars.channel == `null`)"),
        ("true && results[0].result.a.b[2]", "(`true`) && (results[0].result.a.b[2])"),
    ],
)
def test_expressions_are_translated(text: str, made: str) -> None:
    assert as_jmespath(text, NAMES) == made
    assert expression_defect(made) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "ends too early"),
        ("n >", "ends too early"),
        ("n < 3)", "')' is too much"),
        ("(n < 3", "')' is missing"),
        ("n ? 1 : 2", "character 2 cannot be read"),
        ("contains(results, 'x')", "the function 'contains' cannot be said"),
        ("n * 2", "'*' cannot be said"),
        ("n - channel", "only a number can be subtracted"),
        ("results[n].error", "an index is a whole number"),
        ("results[0].id", "results has no 'id' here; it has error, result"),
        ("plan.intention", "plan has no 'intention'"),
        ("nothing > 1", "nothing is called 'nothing' here"),
        ("!" * 5000 + "n", "nested too deeply"),
        ("(" * 5000 + "n", "nested too deeply"),
        ("x.__class__", "nothing is called 'x'"),
        ("query.", "a field is missing"),
        ('query == "\\x"', "an escape that JSON does not know"),
    ],
)
def test_what_cannot_be_said_is_named(text: str, told: str) -> None:
    with pytest.raises(NotExpressible) as caught:
        as_jmespath(text, NAMES)
    assert told in str(caught.value)


def test_insertions_become_ours_and_braces_stay_braces() -> None:
    assert (
        translated_text("a ${results[0].error} {{x}} $5 ${n}", NAMES)
        == "a {{ results[0].error }} \\{{x}} $5 {{ round }}"
    )
    with pytest.raises(NotExpressible, match="no closing brace"):
        translated_text("a ${n", NAMES)


def refused(source: str, **variables: Any) -> dict[tuple[int | None, str], str]:
    with pytest.raises(InvalidRequest) as caught:
        import_workflow(source, variables)
    return {(one["line"], one["path"]): one["message"] for one in caught.value.details["errors"]}


COMPLETE = """\
name: mine
init: {results: [], channel: "#a"}
vars: {iteration: 1}
stage:
  loop:
    plan:
      action: llm/core:plan
      input:
        query: ${query}
        tools: [web.search, calc/eval]
        promptTemplate: "Plan $query. ## never shown"
      post: {plan: "${plan}", elicitation: "${plan.elicitation}"}
    exec:
      action: llm/exec:run_plan
      when: len(plan.steps) > 0
      post: {results: "${results}", iteration: "${iteration + 1}"}
      goto:
        when: iteration <= 3 && len(plan.steps) > 0 && results[-1].error == ""
        task: loop
    postproc:
      action: my/tool:summarise
      when: iteration > 2
      input: {data: "${results[-1].result}", channel: "${channel}", rounds: "${iteration}"}
      post: {summary: "${summary}"}
  last: {action: notify:done}
"""


def test_a_complete_document_becomes_a_block() -> None:
    assert import_workflow(COMPLETE).to_json() == {
        "max_rounds": 3,
        "prompt": {"text": "Plan {{query}}. "},
        "tools": {"allow": ["web_search", "calc_eval"]},
        "until": ["!(!(results[-1].error))"],
        "after": [
            {
                "tool": "my_tool_summarise",
                "when": "sum([round, `1`]) > `2`",
                "with": {
                    "data": "{{ results[-1].result }}",
                    "channel": "{{ vars.channel }}",
                    "rounds": "{{ sum([round, `1`]) }}",
                },
            },
            {"tool": "notify_done"},
        ],
        "vars": {"channel": "#a"},
    }


def test_without_a_jump_back_there_is_one_round() -> None:
    document = """
    stage:
      loop:
        plan: {action: "llm/core:plan"}
        exec: {action: "llm/exec:run_plan"}
    """

    assert import_workflow(document).to_json() == {"max_rounds": 1}


def test_what_the_caller_sets_is_given_beside() -> None:
    document = "plan:\n  input:\n    promptTemplate: ${mine}\n    tools: ${mine_too}\n"

    block = import_workflow(document, {"mine": "Plan {{x}} $query".replace("{{x}} ", ""), "mine_too": "a, b.c"})

    assert block.to_json() == {"prompt": {"text": "Plan {{query}}"}, "tools": {"allow": ["a", "b_c"]}}
    assert "--var mine=@FILE" in refused(document)[(3, "/plan/input/promptTemplate")]


TEMPLATE = """\
You plan. {"type": "tool"}
Asked: ${Query}
#if(${Context})
Given: ${Context}
#end
#if(${Results})
Results
#foreach($one in $Results)
   - ${one.Name} ($one.Args)#if($one.Result) gives ${one.Result}#end#if($one.Error) failed: ${one.Error}#end
#end
#end
#if(${ResultSummary})In short: ${ResultSummary}#end
End.
"""
"""With the directives and names of Agently's own template."""


def imported_prompt(template: str) -> str:
    block = import_workflow(
        "stage: {loop: {plan: {action: 'llm/core:plan', input: {promptTemplate: '${mine}'}}, "
        "exec: {action: 'llm/exec:run_plan', when: len(plan.steps) > 0, goto: {task: loop}}}}",
        {"mine": template},
    )
    assert block.prompt is not None
    assert block.prompt.text is not None
    return block.prompt.text


def test_conditions_and_the_loop_of_agentlys_own_template_are_translated() -> None:
    prompt = imported_prompt(TEMPLATE)

    told = " ".join(prompt.split())
    assert told == 'You plan. {"type": "tool"} Asked: {{query}} Given: {{context}} Results {{results}} End.'


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("#if($query && $context) x #end", "line 1 of the template: #if($query && $context) cannot be said here"),
        ("#if($query) x #else y #end", "#else"),
        ("a\n#foreach($t in $tools) $t #end", "line 2 of the template: #foreach($t in $tools) cannot be said here"),
        ("#foreach($r in $results) $r.name $query.length #end", "nothing is called 'query.length'"),
        ("#foreach($r in $results) $r.id #end", "a result has no 'id'; known fields are args, error, name, result"),
        ("#if($query) x", "#if has no #end"),
        ("x #end", "#end closes nothing"),
        ("#set($a = 1)", "#set"),
    ],
)
def test_what_else_velocity_can_say_is_refused(template: str, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        imported_prompt(template)

    assert told in str(refused.value)


BROKEN = """\
init: {results: [1], computed: "${query}"}
stage:
  first: {action: x}
  loop:
    early: {action: x}
    plan:
      action: llm/core:plan
      input:
        model: gpt-5
        promptTemplate: "#foreach($r in $results) $r #end $session"
      retries: 3
    exec:
      action: llm/exec:run_plan
      when: len(plan.steps) > 1
      post:
        total: ${total + 2}
      goto: {task: plan}
      onError:
        action: notify:slack
        input: {text: "${step.id} ${nobody}"}
    late:
      action: x
      when: contains(results, 'a')
      goto: {task: loop}
      post: {a: "${b}"}
    odd: 7
surprise: 1
"""


def test_all_that_cannot_be_said_is_refused_by_line() -> None:
    assert set(refused(BROKEN)) == {
        (1, "/init/results"),
        (1, "/init/computed"),
        (3, "/stage/first"),
        (5, "/stage/loop/early"),
        (9, "/stage/loop/plan/input/model"),
        (10, "/stage/loop/plan/input/promptTemplate"),
        (11, "/stage/loop/plan/retries"),
        (14, "/stage/loop/exec/when"),
        (16, "/stage/loop/exec/post/total"),
        (17, "/stage/loop/exec/goto"),
        (20, "/stage/loop/exec/onError/input/text"),
        (23, "/stage/loop/late/when"),
        (24, "/stage/loop/late/goto"),
        (25, "/stage/loop/late/post/a"),
        (26, "/stage/loop/odd"),
        (27, "/surprise"),
    }


@pytest.mark.parametrize(
    ("source", "line"),
    [("- a", 1), ("", 1), ("stage: [\n", 2), ("stage: {loop: 3}", 1), ("a: 1\na: 2", 2), ("stage: 5", 1)],
)
def test_what_is_no_workflow_is_refused(source: str, line: int) -> None:
    assert all(place[0] in (line, None) for place in refused(source))


def test_a_counter_that_starts_as_no_number_is_refused() -> None:
    document = "vars: {n: many}\nexec:\n  post:\n    n: ${n + 1}\n"

    assert "cannot be counted" in refused(document)[(4, "/exec/post/n")]

"""The offline answers."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.models.exchange import Ask, Findings
from planq.shared.kernel.steps import StepResult
from planq.worker.models.offline import answer_offline
from planq.worker.models.offline.structured import SIGNATURE

ASK = Ask("job-1", "do it", "offline")


def answer(*results: StepResult) -> str:
    text = answer_offline(ASK, Findings(results=results)).text
    assert text.endswith(f"\n\n{SIGNATURE}")
    return text.removesuffix(f"\n\n{SIGNATURE}")


def found(*titles: str) -> dict[str, Any]:
    hits = [{"title": title, "source": "README.md", "text": f"About {title}.", "score": 1.0} for title in titles]
    return {"results": hits, "text": "all", "count": len(hits)}


def test_a_calculation_is_an_equation() -> None:
    assert answer(StepResult("calculate", {"expression": "2+2"}, {"result": 4})) == "2+2 = 4"


def test_hits_are_listed_with_title_source_and_text() -> None:
    text = answer(StepResult("knowledge_search", {"query": "leases"}, found("Leases", "Workers")))

    assert text.startswith("About “leases” I found 2 passages:")
    assert "- **Leases** (README.md): About Leases." in text
    assert "- **Workers** (README.md): About Workers." in text


def test_no_hit_is_said() -> None:
    text = answer(StepResult("knowledge_search", {"query": "x"}, found()))

    assert text == "I found nothing about “x”."


def test_a_report_is_given_in_full_and_alone() -> None:
    report = {"artifact_id": "a", "artifact": {"title": "T", "markdown": "# T\n\nText\n"}, "_metadata": {}}

    text = answer(
        StepResult("knowledge_search", {"query": "x"}, found("X")),
        StepResult("write_report", {"title": "T"}, report),
    )

    assert text == "# T\n\nText"


def test_a_failure_is_named_before_what_was_done() -> None:
    text = answer(
        StepResult("calculate", {"expression": "2+2"}, {"result": 4}),
        StepResult("http_fetch", {"url": "https://a.b"}, error="connection refused", index=1),
    )

    assert text.startswith("$1 (http_fetch) failed: connection refused")
    assert text.index("failed") < text.index("2+2 = 4")


def test_a_page_the_time_a_wait_and_an_unknown_tool_are_told() -> None:
    text = answer(
        StepResult("http_fetch", {"url": "https://a.b"}, {"url": "https://a.b/", "title": "A", "text": "Hello"}),
        StepResult("now", {}, {"iso": "2026-01-01T00:00:00+00:00"}),
        StepResult("wait", {"seconds": 3}, {"waited_seconds": 3}),
        StepResult("weather", {}, {"sky": "``` blue"}),
    )

    assert "**A** (https://a.b/)\n\nHello" in text
    assert "It is 2026-01-01T00:00:00+00:00." in text
    assert "I waited 3 seconds." in text
    assert '````json\n{\n  "sky": "``` blue"\n}\n````' in text


def test_the_defects_of_a_plan_are_listed() -> None:
    error = {"tool_index": 0, "argument": "/x", "template": "$0.output.y", "error": {"type": "self_reference"}}

    text = answer_offline(ASK, Findings(plan_errors=[error])).text

    assert "I did not run anything" in text
    assert "cannot reference itself" in text
    assert text.endswith(SIGNATURE)


def test_nothing_done_is_said() -> None:
    assert answer() == "No step was carried out, so there is nothing to tell."


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
outputs = st.one_of(
    json_values,
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("results", "text", "result", "artifact", "title", "url", "iso", "markdown", "count"), json_values
        ),
    ),
)
names = st.sampled_from(["knowledge_search", "calculate", "http_fetch", "now", "wait", "write_report", "other"])
results = st.builds(
    StepResult,
    names,
    st.dictionaries(st.sampled_from(["query", "expression", "url", "seconds"]), json_values, max_size=2),
    outputs,
    st.none() | st.text(max_size=20),
)


@given(
    st.lists(results, max_size=4), st.lists(st.dictionaries(st.text(max_size=8), json_values, max_size=2), max_size=2)
)
def test_every_finding_gives_an_answer(steps: list[StepResult], errors: list[dict[str, Any]]) -> None:
    completion = answer_offline(ASK, Findings(results=steps, plan_errors=errors))

    assert completion.text.endswith(SIGNATURE)
    assert completion.tool_calls == ()


def test_of_agents_the_last_ones_words_are_the_answer() -> None:
    steps = [{"id": "a", "output": {"text": "one"}}, {"id": "b", "output": {"text": f"two\n\n{SIGNATURE}"}}]

    assert answer(StepResult("cp__agent_orchestrate", {}, {"success": True, "steps": steps})) == "two"
    no_text = {"success": True, "steps": [{"output": {"n": 1}}]}
    for other in ({"success": False, "steps": steps}, no_text, {"steps": 7}):
        assert answer(StepResult("cp__agent_orchestrate", {}, other)).startswith("cp__agent_orchestrate returned:")

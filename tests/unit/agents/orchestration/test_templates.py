"""Templates of orchestrations: what is inserted is inserted as it is, and is never read again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planq.shared.agentic.orchestration.templates import (
    GuardedTexts,
    Scope,
    Target,
    render_text,
    render_value,
    restored,
)
from planq.shared.agentic.references.resolution import resolve
from planq.shared.platform.errors import InvalidArguments

FOUND = Target(0, ("output",))
JUDGED = Target(1, ("output",), {"a.b": ("children", "0", "output")})
OUTPUTS: dict[int, Any] = {
    0: {"output": {"text": "as found", "n": 3}},
    1: {"output": {"a.b": {"v": 1}}, "children": [{"output": {"v": 1}}]},
}


def scope(bindings: dict[str, Any], step: int = 2) -> Scope:
    return Scope(bindings, {"found": FOUND, "judged": JUDGED, "a.b": Target(1, ("children", "0", "output"))}, step)


def called(planned: Any, guarded: GuardedTexts, outputs: Any = OUTPUTS) -> Any:
    """Do what the engine and the tool do with compiled arguments."""
    arguments = resolve({"with": planned, "texts": guarded.texts}, outputs).arguments
    return restored({"with": arguments["with"]}, arguments["texts"])["with"]


def rendered(value: Any, bindings: dict[str, Any], outputs: Any = OUTPUTS) -> Any:
    guarded = GuardedTexts()
    planned = render_value({"it": value}, scope(bindings), guarded, (None, "with"), "with")
    return called(planned, guarded, outputs)["it"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{{ bindings.n }}", 3),
        ("{{bindings.deep.list[1].x}}", [True]),
        ("{{ bindings.deep.list.1.x }}", [True]),
        ("n is {{ bindings.n }}", "n is 3"),
        ("{{ bindings.deep.list }}!", '[0,{"x":[true]}]!'),
        ("{{ result.found.n }}", 3),
        ("{{ bindings.found.n }}", 3),
        ("{{ result.found }}", {"text": "as found", "n": 3}),
        ("{{ result.found.n }}{{ result.found.text }}", "3as found"),
        ("{{ result.judged.a.b.v }}", 1),
        ("{{ result.a.b.v }}", 1),
        ("{{ result.judged }}", {"a.b": {"v": 1}}),
        ("{{ bindings.n.deeper }}", None),
        ("{{ result.absent.f }}", None),
        *(("{{ n }}", 3), ("{{ .n }}", 3), ("{{ .bindings.n }}", 3), ("{{.bindings.deep.list[0]}}", 0)),
        *(("{{ found.n }}", 3), ("{{ .found.n }}", 3), ("{{ .result.found.n }}", 3), ("{{ judged.a.b.v }}", 1)),
        ("{{ deep.list.0 }} of {{ .found.text }}", "0 of as found"),
        ("\\{{ bindings.n }}", "{{ bindings.n }}"),
        ("$0.output.output.n", "$0.output.output.n"),
        (["{{ bindings.n }}", {"{{ bindings.n }}": "{{ bindings.n }}"}], [3, {"{{ bindings.n }}": 3}]),
    ],
)
def test_a_template_means_a_binding_or_a_result(value: Any, expected: Any) -> None:
    bindings = {"n": 3, "deep": {"list": [0, {"x": [True]}]}}

    assert rendered(value, bindings) == expected


HOSTILE = st.sampled_from(
    [
        "$0.output.output.text",
        "$0.output..",
        "{{ result.found.n }}",
        "{{ bindings.other }}",
        "{{ $0.output.output.n }}",
        "$step[0].output.output.n ",
        *("{{", "\\{{", "{", "}", "=", "$", "x", "\n"),
    ]
)
TEXTS = st.lists(HOSTILE | st.text(max_size=4), max_size=5).map("".join)


@given(TEXTS)
def test_a_text_that_is_inserted_is_never_read_again(text: str) -> None:
    bindings = {"x": text, "other": "secret"}

    assert rendered("{{ bindings.x }}", bindings) == text
    assert rendered({"deep": ["{{ bindings.x }}"]}, bindings) == {"deep": [text]}
    assert rendered("a {{ bindings.x }} b", bindings) == f"a {text} b"
    assert rendered("{{ bindings.x }}{{ result.found.n }}{{ bindings.x }}", bindings) == f"{text}3{text}"


@given(TEXTS)
def test_an_output_that_is_inserted_is_never_read_again(text: str) -> None:
    outputs = {0: {"output": {"text": text}}}

    assert rendered("{{ result.found.text }}", {"other": "secret"}, outputs) == text
    assert rendered("{{ bindings.o }}{{ result.found.text }}", {"o": "$"}, outputs) == f"${text}"


@given(TEXTS)
def test_what_is_no_template_stands_for_itself(text: str) -> None:
    if "{{" not in text:
        assert rendered(text, {}) == text


def test_a_prompt_stays_a_text() -> None:
    guarded = GuardedTexts()

    planned = render_text("{{ result.found }}", scope({}), guarded, (None, "with"), "prompt")

    assert called(planned, guarded) == '{"text":"as found","n":3}'


@pytest.mark.parametrize(("step", "rule"), [(0, "self_reference"), (1, None)])
def test_only_results_of_earlier_steps_can_be_used(step: int, rule: str | None) -> None:
    where = scope({}, step)

    render_value({"q": "{{ result.found.n }}"}, where, GuardedTexts(), None, "steps[0].agent.with")

    assert [defect.code for defect in where.defects] == ([rule] if rule else [])


def test_results_of_later_steps_are_defects_that_name_their_place() -> None:
    where = scope({}, 0)

    render_text("{{ result.judged }}", where, GuardedTexts(), None, "steps[0].agent.prompt")

    (defect,) = where.defects
    assert (defect.pointer, defect.code) == ("steps[0].agent.prompt", "forward_reference")


def test_names_that_nothing_has_are_told() -> None:
    where = scope({"n": [1]})

    render_value(["{{ bindings.n.8 }}", "{{ n.7 }}"], where, GuardedTexts(), None, "with")

    assert (where.missing, where.defects) == (["bindings.n.8", "n.7"], [])


@pytest.mark.parametrize(
    ("name", "there"),
    [
        *(("bindings.absent", "'n', 'found', 'judged', 'a.b'"), ("absent.f", "'n', 'found', 'judged', 'a.b'")),
        (".absent", "'n', 'found', 'judged', 'a.b'"),
    ],
)
@pytest.mark.parametrize("text", ["{{ %s }}", "see {{ %s }}"])
def test_a_name_that_nothing_has_is_a_defect_that_names_those_there_are(text: str, name: str, there: str) -> None:
    # Pins: such a template reached the agent as its letters, or as null.
    where = scope({"n": [1]})

    render_value({"q": text % name}, where, GuardedTexts(), None, "steps[2].agent.with")

    (defect,) = where.defects
    assert (defect.pointer, defect.code) == ("steps[2].agent.with.q", "unknown_binding")
    assert f"nothing is called '{name.removeprefix('.')}'; there: {there}" in defect.message


@pytest.mark.parametrize(
    "text",
    [
        *(
            "{{ bindings.n",
            "a {{ result.found.n }",
        ),
        *("{{ bindings.n | upper }}", "{{ result.x['n'] }}", "{{ bindings }}", "{{ $bindings.n }}"),
        *("{{ anything else }}", "{{ $0.output.output.n }}", "{{ n | upper }}", "{{ .found.n|upper }}", "{{ }}"),
        *("{{ n", "{{ ..n }}", "{{ .result }}", "{{ upper(n) }}"),
    ],
)
def test_what_is_nearly_a_template_is_a_defect_and_never_a_text(text: str) -> None:
    for value in (text, f"see {text} there"):
        where = scope({"n": 1})

        render_value({"q": value}, where, GuardedTexts(), None, "steps[2].agent.with")

        assert [(one.pointer, one.code) for one in where.defects] == [("steps[2].agent.with.q", "invalid_template")]
        assert "{{ bindings.NAME }}" in where.defects[0].message


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("{{ bindings.o.x }} b", "'p'"),
        ("{{ o.x }} b", "'p'"),
        ("a {{ result.x }}", "'found', 'judged'"),
    ],
)
def test_a_field_that_a_binding_lacks_cannot_be_written_into_a_text(text: str, there: str) -> None:
    where = scope({"n": 1, "o": {"p": 2}})

    render_text(text, where, GuardedTexts(), None, "steps[2].agent.prompt")

    (defect,) = where.defects
    rule = "unknown_binding" if "result" in text else "unknown_name"
    assert (defect.pointer, defect.code, where.missing) == ("steps[2].agent.prompt", rule, [])
    assert f"there: {there}" in defect.message


@pytest.mark.parametrize("text", ["{{ result.found.none }} there", "\\{{ {{ result.found.none }}"])
def test_an_absent_field_in_a_text_is_an_error_that_names_those_there_are(text: str) -> None:
    with pytest.raises(InvalidArguments, match=r"found no 'none'.*'text', 'n'"):
        rendered(text, {})


def test_a_short_plan_cannot_insert_a_large_binding_without_end() -> None:
    # Pins: a prompt of a few kilobytes, put together to gigabytes before anything bounded it.
    where = scope({"x": "x" * 1_000_000})
    text = "{{ bindings.x }}" * 10_000

    planned = render_text(text, where, GuardedTexts(), None, "steps[2].agent.prompt")

    assert [(defect.pointer, defect.code) for defect in where.defects] == [("steps[2].agent.prompt", "too_large")]
    assert len(planned) < 17_000_000


def test_a_path_of_very_many_segments_is_followed_in_one_pass() -> None:
    # Pins: each beginning of the path was put together, which took minutes for a path of a megabyte.
    deep: Any = "end"
    for _ in range(900):
        deep = {"a": deep}
    where = scope({"x": deep, ".".join("n" * 64): "whole"})

    assert where.find("bindings", ("x", *"a" * 900), "with") == "end"
    assert where.find("bindings", ("x", *"a" * 300_000), "with") is None
    assert where.find("bindings", tuple("n" * 64), "with") == "whole"

"""How commands end: one exit code for each kind of error, and every defect with its place."""

from __future__ import annotations

import json

import pytest
import typer

from planq.api.cli.outcome import describe_defect, exit_code, report, reported
from planq.shared.platform import errors
from planq.shared.platform.errors import InvalidRequest, PlanInvalid, PlanqError

UNKNOWN = {"tool_index": 1, "argument": "/q", "template": "$0.output.x", "error": {"type": "self_reference"}}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequest("x"), 1),
        (errors.PlanInvalid("x", []), 1),
        (errors.NotFound("x"), 1),
        (errors.Conflict("x"), 1),
        (errors.TooLarge("x"), 1),
        (errors.Unauthorized("x"), 2),
        (errors.Unavailable("x"), 2),
        (errors.DatabaseUnavailable("x"), 2),
        (errors.Misconfigured("x"), 2),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: PlanqError, code: int) -> None:
    assert exit_code(error) == code
    with pytest.raises(typer.Exit) as ended, reported(as_json=False):
        raise error
    assert ended.value.exit_code == code


@pytest.mark.parametrize(
    ("defect", "line"),
    [
        (UNKNOWN, "Call 1, argument '/q' ('$0.output.x'): a call cannot reference itself; refer to an earlier call"),
        ({"in": "body", "field": "limits.a", "message": "unknown field"}, "limits.a: unknown field"),
        ({"in": "body", "field": "", "message": "is required"}, "body: is required"),
        ({"tool_index": 0, "argument": "", "template": None, "error": {"type": "from_later"}}, None),
        ({"error": "no object"}, None),
        ("just\ntext \x1b[2J", '"just\\ntext \\u001b[2J"'),
    ],
)
def test_a_defect_is_one_line_with_its_place(defect: object, line: str | None) -> None:
    assert describe_defect(defect) == (line or json.dumps(defect))


def test_people_get_title_detail_and_what_the_detail_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    error = InvalidRequest(
        "first: bad", title="Unprocessable", errors=[{"field": "first", "message": "bad"}, UNKNOWN]
    )

    report(error, as_json=False)

    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert lines[0] == "planq: Unprocessable: first: bad"
    assert [line[:9] for line in lines[1:]] == ["- Call 1,"]


def test_programs_get_one_document_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    report(PlanInvalid("bad", [UNKNOWN]), as_json=True)

    printed = capsys.readouterr()
    assert printed.err == ""
    assert json.loads(printed.out) == {"error": {"code": "plan_invalid", "message": "bad", "errors": [UNKNOWN]}}

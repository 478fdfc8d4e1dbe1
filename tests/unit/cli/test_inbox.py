"""`planq inbox` and `planq answer`: what they send, ask for and print."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from tests.support.recorder import Recorder

ID = "01a1fc26-aa7a-7082-9f4d-2dd23711ed45"
JOB = "01a1fc26-aa7a-7082-9f4d-2dd23711ed46"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "title": "City", "description": "Where you go."},
        "nights": {"type": "integer"},
        "class": {"enum": ["first", "second"]},
        "early": {"type": "boolean"},
        "with": {"type": "array"},
    },
    "required": ["city", "nights", "early"],
}

Planq = Callable[..., Result]


def question(**fields: Any) -> dict[str, Any]:
    shape = {
        "id": ID,
        "job_id": JOB,
        "step_index": 2,
        "kind": "form",
        "status": "open",
        "asked_of": "operator",
        "message": "Where\x1b[1m to?",
    }
    return {**shape, "schema": SCHEMA, "url": None, "details": None, **fields}


def sent(server: Recorder) -> Any:
    method, path, _, body = server.asked[-1]
    assert (method, path) == ("POST", f"/elicitations/{ID}")
    return body


def test_the_inbox_lists_open_questions_of_a_job(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"items": [question()], "next_cursor": None})

    told = planq("inbox", "--job", JOB)
    data = planq("inbox", "--all", "--json")

    assert told.exit_code == 0
    assert [word in told.stdout for word in (ID, "form", "open", "operator", f"{JOB} $2", "Where")] == [True] * 6
    assert "\x1b" not in told.stdout
    assert json.loads(data.stdout)["items"] == [question()]
    paths = [path for _, path, _, _ in server.asked]
    assert all(path.startswith("/elicitations") for path in paths)
    assert ["status=open" in path and JOB in path for path in paths] == [True, False]


def test_the_inbox_shows_as_many_as_are_asked_for_and_says_that_there_are_more(
    planq: Planq, server: Recorder
) -> None:
    """It printed all of 6 000."""
    server.answer(200, {"items": [question(), question()], "next_cursor": "next"})

    told = planq("inbox", "--limit", "2")

    assert len(told.stdout.splitlines()) == 2
    assert "there are more; --limit shows them" in told.stderr
    assert [path for _, path, _, _ in server.asked] == ["/elicitations?status=open&limit=2"]


def test_an_empty_inbox_says_so(planq: Planq, server: Recorder) -> None:
    server.answer(200, {"items": [], "next_cursor": None})

    told = planq("inbox")

    assert (told.exit_code, told.stdout) == (0, "")
    assert "nobody asks anything" in told.stderr


def test_answers_are_asked_for_as_the_schema_wants_them(planq: Planq, server: Recorder) -> None:
    server.answer(200, question(status="accepted"))

    told = planq("answer", ID, "--by", "ada", given='Pisa\n2\nsecond\nyes\n["x"]\n')

    assert told.exit_code == 0, told.output
    assert told.stdout.endswith(f"question {ID} accepted\n")
    content = {"city": "Pisa", "nights": 2, "class": "second", "early": True, "with": ["x"]}
    assert sent(server) == {"action": "accept", "content": content, "by": "ada", "channel": "cli"}
    assert all(word in told.stderr for word in ("City (string)", "Where you go.", "first | second"))


@pytest.mark.parametrize("kind", ["boolean", ["boolean", "null"], ["null", "boolean"]])
@pytest.mark.parametrize(
    ("typed", "value"), [("y", True), ("Y", True), ("yes", True), ("n", False), ("No", False), ("true", True)]
)
def test_yes_and_no_answer_a_boolean(planq: Planq, server: Recorder, kind: Any, typed: str, value: bool) -> None:
    schema = {"type": "object", "properties": {"early": {"type": kind}}, "required": ["early"]}
    server.answer(200, question(status="accepted", schema=schema))

    told = planq("answer", ID, given=f"{typed}\n")

    assert told.exit_code == 0, told.output
    assert sent(server)["content"] == {"early": value}


def test_null_answers_a_boolean_that_may_be_null(planq: Planq, server: Recorder) -> None:
    schema = {"type": "object", "properties": {"early": {"type": ["boolean", "null"]}}, "required": ["early"]}
    server.answer(200, question(status="accepted", schema=schema))

    assert planq("answer", ID, given="null\n").exit_code == 0
    assert sent(server)["content"] == {"early": None}


def test_what_is_left_empty_and_not_required_is_left_out(planq: Planq, server: Recorder) -> None:
    server.answer(200, question(status="accepted"))

    planq("answer", ID, given="Pisa\n2\n\nno\n\n")

    assert sent(server)["content"] == {"city": "Pisa", "nights": 2, "early": False}


def test_a_wrong_entry_is_asked_for_again(planq: Planq, server: Recorder) -> None:
    server.answer(200, question(status="accepted"))

    told = planq("answer", ID, given="Pisa\nmany\n2.5\n2\nthird\nsecond\nperhaps\nyes\n\n")

    assert told.exit_code == 0, told.output
    assert sent(server)["content"] == {"city": "Pisa", "nights": 2, "class": "second", "early": True}
    assert [told.stderr.count(name + ":") for name in ("nights", "class", "early")] == [2, 1, 1]


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (["--content", '{"city": "Rome"}'], {"action": "accept", "content": {"city": "Rome"}}),
        (["--decline", "--reason", "too far"], {"action": "decline", "reason": "too far"}),
        (["--cancel"], {"action": "cancel"}),
    ],
)
def test_an_answer_can_be_given_whole(planq: Planq, server: Recorder, options: list[str], body: Any) -> None:
    server.answer(200, question(status="declined"))

    assert planq("answer", ID, *options).exit_code == 0
    assert sent(server) == {**body, "channel": "cli"}
    assert len(server.asked) == 1


def test_a_refused_answer_names_every_defect(planq: Planq, server: Recorder) -> None:
    defects = [{"pointer": "/content/nights", "message": "expected at least 1"}]
    server.answer(
        422, {"title": "Invalid", "detail": "breaks the schema", "code": "invalid_request", "errors": defects}
    )

    told = planq("answer", ID, "--content", "{}")

    assert told.exit_code == 1
    assert "breaks the schema" in told.stderr


@pytest.mark.parametrize("options", [["--decline", "--cancel"], ["--content", "{}", "--decline"], ["--content", "{"]])
def test_a_contradiction_is_refused_before_anything_is_sent(
    planq: Planq, server: Recorder, options: list[str]
) -> None:
    assert planq("answer", ID, *options).exit_code in (1, 2)
    assert server.asked == []


def test_a_secret_is_typed_unseen_and_never_repeated(planq: Planq, server: Recorder) -> None:
    fields = {
        "user": {"type": "string"},
        "api_key": {"type": "string", "minLength": 8, "default": "stands-there"},
    }
    schema = {"type": "object", "properties": fields, "required": ["user", "api_key"]}
    server.answer(200, question(status="accepted", schema=schema, is_secret=True))

    told = planq("answer", ID, given="ada\nsk-47\nsk-4711-abc\n")

    assert told.exit_code == 0, told.output
    assert sent(server)["content"] == {"user": "ada", "api_key": "sk-4711-abc"}
    assert "api_key: not as its schema says" in told.stderr
    assert not [word for word in ("sk-47", "stands-there") if word in told.output]

"""The programs, files and statements that the docs print do what the pages say."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg

from planq.shared.agentic.models.exchange import TurnForm
from planq.shared.agentic.plan.interpret import Direct
from planq.shared.agentic.plan.planner import PlanningRequest
from planq.shared.agentic.rounds.reading import TurnCalls, interpret_turn
from planq.testing import tool_context
from planq.worker.models.planners import InstalledPlanners
from tests.support.stack import Stack
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]


def blocks(language: str, page: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def space_of(page: str) -> dict[str, Any]:
    """What the program of a page defines."""
    (program,) = blocks("python", page)
    space: dict[str, Any] = {"__name__": "printed"}
    exec(compile(program, page, "exec", dont_inherit=True), space)
    return space


def test_the_tool_that_asks_books_what_is_answered() -> None:
    book_room = space_of("docs/questions.md")["book_room"]

    assert asyncio.run(book_room(tool_context([{"city": "Rome"}]))) == {"booked": "Rome"}


def test_the_planner_looks_up_once_and_then_answers() -> None:
    class Printed:
        plan = staticmethod(space_of("docs/loops.md")["plan"])

    def turn(results: list[dict[str, Any]]) -> object:
        asked = PlanningRequest("job", "leases", (), {"results": results, "round": len(results)}, 0, 3)
        reply = asyncio.run(InstalledPlanners({"lookup": Printed()}).decide("lookup", asked))
        return interpret_turn(reply.text, reply.tool_calls, TurnForm.LOOP)

    first = turn([])

    assert isinstance(first, TurnCalls)
    assert [(call.tool_name, call.arguments) for call in first.plan.calls] == [
        ("knowledge_search", {"query": "leases"})
    ]
    assert turn([{"result": "A lease ends.", "error": None}]) == Direct("A lease ends.")


def test_programs_files_and_statements_work_as_printed(
    make_stack: Callable[..., Stack], database_url: str, valkey_url: str
) -> None:
    stack = make_stack(database_url, valkey_url)
    stack.start()
    file, wrong, result = blocks("json", "docs/batches.md")

    for page, begins in (("docs/client.md", "6*7 = 42"), ("README.md", "6*7 = 42\n\n(42) / 4 = 10.5")):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            program, *_ = blocks("python", page)
            exec(compile(program.replace("http://127.0.0.1:8000", stack.url), page, "exec", dont_inherit=True), {})
        assert said.getvalue().startswith(begins)

    lines = [*file.splitlines(), *(f'{{"custom_id": "n{n}", "body": {{"input": "hi"}}}}' for n in range(5)), file]
    with httpx.Client(base_url=stack.url, timeout=60) as client:
        kind = {"Content-Type": "application/jsonl"}
        sent = client.post("/batches", content="\n".join(lines), headers=kind).json()
        batch = f"/batches/{sent['id']}"
        eventually(lambda: client.get(batch).json()["status"] == "completed")
        errors, results = (
            [json.loads(line) for line in client.get(f"{batch}/{name}").text.splitlines()]
            for name in ("errors", "results")
        )
    assert errors[0] == json.loads(wrong)
    assert {one["custom_id"] for one in results} >= {"order-1", "order-2"}
    assert results[0].keys() == json.loads(result.replace("…", "...")).keys()
    assert results[0]["response"].keys() == json.loads(result.replace("…", "..."))["response"].keys()

    remove, renumber = blocks("sql", "docs/operations.md")
    job = results[0]["response"]["body"]["id"]
    with psycopg.connect(database_url) as connection:
        connection.execute(remove.replace("…", job))  # type: ignore[arg-type, unused-ignore]
        connection.execute(renumber)  # type: ignore[arg-type, unused-ignore]
        left = connection.execute("SELECT count(*) FROM steps WHERE job_id = %s", [job]).fetchone()
    assert left == (0,)

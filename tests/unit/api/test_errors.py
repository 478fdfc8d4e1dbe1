"""The table from the domain's errors to HTTP is complete, and says what the tree says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from planq.api.http.exchange import STATUS_OF, Faults, HttpRefusal, Problem, error_response
from planq.shared.platform import errors as domain
from planq.shared.platform.errors import PlanqError, RequestRefused


def leaves(kind: type[PlanqError]) -> Iterator[type[PlanqError]]:
    below = [one for one in kind.__subclasses__() if one.__module__ == domain.__name__]
    if not below:
        yield kind
    for one in below:
        yield from leaves(one)


def make(kind: type[PlanqError]) -> PlanqError:
    return domain.PlanInvalid("m", [{"a": 1}]) if kind is domain.PlanInvalid else kind("m")


LEAVES = sorted(leaves(PlanqError), key=lambda kind: kind.__name__)


def test_every_error_that_is_raised_itself_has_a_row() -> None:
    # A call that timed out, broke off or was refused is an error of its own beside the special kinds below it.
    assert set(STATUS_OF) == {*LEAVES, domain.RateLimited, domain.TimedOut, domain.Transient}


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_every_error_becomes_problem_details(kind: type[PlanqError]) -> None:
    response = error_response(make(kind))

    problem = json.loads(bytes(response.body))
    assert Problem.model_validate(problem)
    assert response.media_type == "application/problem+json"
    assert response.status_code == problem["status"] == STATUS_OF[kind]
    if issubclass(kind, RequestRefused):
        assert STATUS_OF[kind] == kind.status
    assert problem["code"] == ("internal" if response.status_code == 500 else kind.code)
    assert ("retry-after" in response.headers) == issubclass(kind, domain.Unavailable)


def test_details_are_members_that_never_replace_the_standard_ones() -> None:
    error = domain.InvalidRequest("expected a", status="x", type="y", detail="z", candidates=["a"])

    problem = json.loads(bytes(error_response(error).body))

    assert problem == {
        "type": "about:blank",
        "title": "Unprocessable Content",
        "status": 422,
        "detail": "expected a",
        "code": "invalid_request",
        "retryable": False,
        "candidates": ["a"],
    }


def test_a_fault_keeps_its_text_to_itself() -> None:
    problem = json.loads(bytes(error_response(domain.InternalFault("password=x")).body))

    assert "password" not in json.dumps(problem)
    assert problem["instance"].startswith("urn:uuid:")


def test_a_refusal_keeps_its_headers_and_members() -> None:
    response = error_response(HttpRefusal(400, "malformed_json", "m", headers={"X-A": "b"}, line=3))

    assert response.headers["x-a"] == "b"
    assert json.loads(bytes(response.body))["line"] == 3


async def cut_off(*said: Message) -> tuple[list[Message], bool]:
    """Cancel a request that has said this much; returns all that was sent, and whether it ended as cancelled."""
    under_way = asyncio.Event()
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in said:
            await send(message)
        under_way.set()
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    task = asyncio.ensure_future(Faults(app)({"type": "http"}, receive, send))
    await under_way.wait()
    task.cancel()
    await asyncio.wait([task])
    return sent, task.cancelled()


def test_a_request_that_is_cut_off_by_the_end_of_the_process_is_to_be_asked_again() -> None:
    (start, body), cancelled = asyncio.run(cut_off())

    assert not cancelled
    assert start["status"] == 503
    assert {b"retry-after", b"connection"} <= {name for name, _ in start["headers"]}
    assert json.loads(body["body"])["code"] == "unavailable"


def test_an_answer_that_has_begun_is_just_cut_off() -> None:
    begun = {"type": "http.response.start", "status": 200, "headers": []}

    assert asyncio.run(cut_off(begun)) == ([begun], True)

"""Celery's signals in the asyncio pool are those that Celery's own tracer sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from celery import Celery, signals
from celery.app.trace import build_tracer
from celery.utils.dispatch import Signal

from planq.worker.celery.task_signals import task_signals

SIGNALS: dict[str, Signal] = {
    name: getattr(signals, name) for name in ("task_prerun", "task_success", "task_failure", "task_postrun")
}
HEADERS = {"lang": "py", "id": "id-1", "traceparent": "00-1"}
span: ContextVar[str] = ContextVar("span")


@pytest.fixture
def app() -> Celery:
    made = Celery("test", broker="memory://")
    made.conf.task_ignore_result = True
    return made


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """What was sent, in its order, with the headers that a receiver finds."""
    found: list[tuple[str, dict[str, Any]]] = []
    receivers = []
    for name, signal in SIGNALS.items():

        def receive(name: str = name, **fields: Any) -> None:
            task = fields["sender"]
            found.append((name, {**fields, "traceparent": task.request.get("traceparent"), "at": task.request.id}))
            if name == "task_prerun":
                span.set("begun")

        receivers.append((signal, receive))
        signal.connect(receive, weak=False)
    yield found
    for signal, receive in receivers:
        signal.disconnect(receive)


def give(value: str) -> str:
    return value * 2


def fail(value: str) -> str:
    raise KeyError(value)


def by_celery(app: Celery, function: Callable[[str], str]) -> None:
    """Run a task as a pool of Celery's does."""
    task = app.task(name=f"celery.{function.__name__}")(function)
    build_tracer(task.name, task, app=app)("id-1", ("v",), {}, {**HEADERS, "delivery_info": {}})


def by_us(app: Celery, function: Callable[[str], str]) -> None:
    """Run a task as the asyncio pool does."""
    task = app.task(name=f"planq.{function.__name__}")(function)

    async def call() -> None:
        with task_signals(task, "id-1", HEADERS, ("v",), {}) as end:
            end.value = function("v")

    with pytest.raises(KeyError) if function is fail else nothing():
        asyncio.run(call())


class nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def shown(sent: tuple[str, dict[str, Any]]) -> tuple[Any, ...]:
    """What a receiver can tell two runs by, the exception by its type."""
    name, fields = sent
    values = {key: fields.get(key) for key in ("task_id", "args", "kwargs", "result", "state", "at", "traceparent")}
    error = fields.get("exception") or fields.get("retval")
    return name, sorted(fields), values, type(error)


@pytest.mark.parametrize("function", [give, fail])
def test_the_signals_of_a_task_are_those_of_celerys_own_pools(
    app: Celery, heard: list[tuple[str, dict[str, Any]]], function: Callable[[str], str]
) -> None:
    copy_context().run(by_celery, app, function)
    expected = [shown(one) for one in heard]
    heard.clear()
    by_us(app, function)

    assert [shown(one) for one in heard] == expected
    middle = "task_success" if function is give else "task_failure"
    assert [name for name, _ in heard] == ["task_prerun", middle, "task_postrun"]


def test_what_a_receiver_sets_in_the_context_holds_for_the_task_alone(
    app: Celery, heard: list[tuple[str, dict[str, Any]]]
) -> None:
    task = app.task(name="planq.give")(give)

    async def call() -> str:
        with task_signals(task, "id-1", HEADERS, (), {}):
            await asyncio.sleep(0)
            return span.get()

    async def both() -> list[str]:
        return list(await asyncio.gather(call(), call()))

    assert asyncio.run(both()) == ["begun", "begun"]
    assert span.get("none") == "none"
    assert task.request.id is None


def test_a_task_that_is_cancelled_ends_and_has_not_failed(
    app: Celery, heard: list[tuple[str, dict[str, Any]]]
) -> None:
    task = app.task(name="planq.give")(give)

    async def call(work: Awaitable[None]) -> None:
        with task_signals(task, "id-1", HEADERS, (), {}):
            await work

    async def cancelled() -> None:
        running = asyncio.create_task(call(asyncio.Event().wait()))
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(cancelled())
    assert [(name, fields.get("state")) for name, fields in heard] == [
        ("task_prerun", None),
        ("task_postrun", "REVOKED"),
    ]

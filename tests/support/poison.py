"""What may stand in a queue and is no wake-up, by what is wrong with it: entries as such, and messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import redis
from kombu import Connection

from planq.shared.broker import names
from planq.shared.broker.messages import encode_wake
from planq.shared.kernel.states import WakeQueue
from planq.shared.kernel.wakes import Wake

JOB = UUID("01900000-0000-7000-8000-000000000001")
_WAKE = encode_wake(Wake.plan(JOB))
_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
HEADERS: Mapping[str, Any] = {
    "lang": "py",
    "task": _WAKE.task,
    "id": _WAKE.task_id,
    "root_id": _WAKE.task_id,
    "eta": None,
    "expires": None,
    "timelimit": [None, None],
    "retries": 0,
}
BODY: Sequence[Any] = [[], _WAKE.kwargs, _EMBED]

ENTRIES: Mapping[str, bytes] = {
    "text": b"x",
    "nothing": b"",
    "an array": b"[]",
    "null": b"null",
    "an empty object": b"{}",
    "a number": b"1",
    "a string": b'"x"',
    "no UTF-8": b"\xff\xfe\x00",
    "too deep": b"[" * 100_000,
    "properties that are none": json.dumps({"body": "e30=", "properties": []}).encode(),
    "no delivery tag": json.dumps({"body": "e30=", "properties": {"delivery_info": {}}}).encode(),
    "a delivery tag that is an object": json.dumps(
        {"properties": {"delivery_tag": {}, "delivery_info": {}}}
    ).encode(),
    "headers that are an array": json.dumps({"headers": ["x"], "properties": {"delivery_tag": "1"}}).encode(),
    "a body in no base64": json.dumps(
        {"body": "abc", "properties": {"delivery_tag": "1", "body_encoding": "base64"}}
    ).encode(),
    "an unknown encoding": json.dumps(
        {"body": "abc", "properties": {"delivery_tag": "1", "body_encoding": "rot13"}}
    ).encode(),
}
"""Only where an entry is all there is: on Redis."""


@dataclass(frozen=True, slots=True)
class Poison:
    """A message that a broker delivers and that is no wake-up."""

    headers: Any = None
    body: Any = None
    content_type: str = "application/json"
    raw: bytes | None = None

    @property
    def bytes(self) -> bytes:
        """The body as it is sent."""
        return json.dumps(BODY if self.body is None else self.body).encode() if self.raw is None else self.raw


def headed(**changes: Any) -> Poison:
    """A wake-up with other headers."""
    return Poison({**HEADERS, **changes})


def bodied(body: Any) -> Poison:
    """A wake-up with another body."""
    return Poison(HEADERS, body)


def called(**arguments: Any) -> Poison:
    """A wake-up with other arguments."""
    return bodied([[], arguments, _EMBED])


MESSAGES: Mapping[str, Poison] = {
    "no headers": Poison({}),
    "an unknown task": headed(task="planq.step.walk.v1"),
    "a task that is an array": headed(task=["x"]),
    "no id": headed(id=None),
    "an id that is an object": headed(id={"x": 1}),
    "a body that is an empty array": bodied([]),
    "a body that is null": Poison(HEADERS, raw=b"null"),
    "a body that is an object": bodied({}),
    "a body that is text": Poison(HEADERS, raw=b"x", content_type="text/plain"),
    "a body that is no JSON": Poison(HEADERS, raw=b"{{{"),
    "a body that is empty": Poison(HEADERS, raw=b""),
    "a body that is too deep": Poison(HEADERS, raw=b"[" * 100_000),
    "a body that is no UTF-8": Poison(HEADERS, raw=b"\xff\xfe"),
    "a pickle": Poison(HEADERS, raw=b"\x80\x04N.", content_type="application/x-python-serialize"),
    "a body that is not compressed": Poison({**HEADERS, "compression": "application/x-gzip"}),
    "a body in an unknown compression": Poison({**HEADERS, "compression": "application/x-none"}),
    "arguments that are an array": bodied([[], [], _EMBED]),
    "arguments by position": bodied([["x"], _WAKE.kwargs, _EMBED]),
    "a chain": bodied([[], _WAKE.kwargs, {**_EMBED, "chain": [{"task": "x"}]}]),
    "a job that is no id": called(**{**_WAKE.kwargs, "job": "x"}),
    "a job that is a number": called(**{**_WAKE.kwargs, "job": 5}),
    "arguments that lack some": called(job=str(JOB), round=0),
    "a step for another task": called(**{**_WAKE.kwargs, "steps": [[0, "x"]]}),
    "an index that no stage has": called(**{**_WAKE.kwargs, "steps": [[-3, None]]}),
    "a stage among others": called(**{**_WAKE.kwargs, "steps": [[-1, None], [-1, None]]}),
    "steps that are no pairs": called(**{**_WAKE.kwargs, "steps": [7]}),
    "a time limit that is no number": headed(timelimit=["x", "y"]),
    "a time limit that is negative": headed(timelimit=[-1, None]),
    "time limits that are no pair": headed(timelimit=7),
    "a start in the year 9999": headed(eta="9999-12-31T23:59:59+00:00"),
    "an end that is no time": headed(expires=[1]),
    "a parent that is an object": headed(parent_id={"x": 1}),
    "a shadow that is an array": headed(shadow=["x"]),
    "a group that is a number": headed(group=1),
    "a place in a group that is text": headed(group="x", group_index="0"),
    "delivery that is text": headed(),
}
"""On every broker; the last one only differs in its envelope (Redis)."""


def entry_of(poison: Poison, *, delivery_info: Any = None) -> bytes:
    """Return a message as kombu writes it on Redis."""
    envelope = {
        "body": base64.b64encode(poison.bytes).decode(),
        "content-encoding": "utf-8",
        "content-type": poison.content_type,
        "headers": poison.headers,
        "properties": {
            "body_encoding": "base64",
            "delivery_tag": str(uuid4()),
            "delivery_info": {"exchange": "", "routing_key": "x"} if delivery_info is None else delivery_info,
        },
    }
    return json.dumps(envelope).encode()


def entries() -> dict[str, bytes]:
    """Return everything that may stand in a queue on Redis, by what is wrong with it."""
    found = dict(ENTRIES)
    for name, poison in MESSAGES.items():
        found[name] = entry_of(poison, delivery_info="x" if name == "delivery that is text" else None)
    return found


def poison_redis(client: redis.Redis, queue: WakeQueue) -> list[str]:
    """Write everything that is no wake-up into a queue; return what is wrong with each."""
    found = entries()
    client.lpush(names.queue(queue), *found.values())
    return list(found)


def poison_rabbitmq(url: str, queue: WakeQueue) -> list[str]:
    """The same on RabbitMQ, whose queue must be there."""
    kinds = {name: poison for name, poison in MESSAGES.items() if name != "delivery that is text"}
    with Connection(url) as connection, connection.Producer() as producer:
        for poison in kinds.values():
            producer.publish(
                poison.bytes,
                routing_key=names.queue(queue),
                headers=poison.headers,
                content_type=poison.content_type,
                content_encoding="utf-8" if poison.content_type != "application/x-python-serialize" else "binary",
            )
    return list(kinds)

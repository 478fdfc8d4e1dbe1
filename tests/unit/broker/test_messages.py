"""What is a wake-up and what is not: everything that planq writes, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import OperationalError

from planq.shared.broker import names
from planq.shared.broker.dead_letters import LONGEST_CHARS, DeadLetter
from planq.shared.broker.depth import reply_of
from planq.shared.broker.messages import (
    NewerWakeUp,
    NoWakeUp,
    check_message,
    decode_wake,
    encode_wake,
    read_links,
)
from planq.shared.kernel.ids import StepRef
from planq.shared.kernel.states import Pool, Priority
from planq.shared.kernel.wakes import TaskLinks, Wake
from tests.support.poison import BODY, HEADERS, MESSAGES

JOB = UUID("01900000-0000-7000-8000-000000000001")

WAKES: list[Wake] = [
    Wake.plan(JOB),
    Wake.plan(JOB, name="host"),
    Wake.respond(JOB),
    Wake(StepRef(JOB, 0, 2), Pool.CPU, "crunch"),
    Wake(StepRef(JOB, 1, 0), Pool.IO, "a", more=((1, "b"),)),
]
WAKES += [replace(wake, priority=Priority.BULK) for wake in WAKES]

EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def reason(headers: Any, payload: Any) -> str:
    """Return why a message is no wake-up, nothing if it is one."""
    try:
        check_message(headers, payload)
    except NoWakeUp as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize("wake", WAKES, ids=lambda wake: f"{wake.ref.index} {wake.name} {wake.priority}")
def test_what_planq_writes_can_be_read(wake: Wake) -> None:
    message = encode_wake(wake)
    assert message.queue.endswith(".bulk") == (wake.priority is Priority.BULK)
    headers = {**HEADERS, "task": message.task, "id": message.task_id, "root_id": message.task_id}
    check_message(headers, json.loads(json.dumps([[], message.kwargs, EMBED])))
    read = decode_wake(**json.loads(json.dumps(message.kwargs)))
    assert (read, read.name) == (wake, wake.name)


@pytest.mark.parametrize(
    ("wake", "shown"),
    [
        (Wake.plan(JOB), "planq.plan"),
        (Wake.plan(JOB, name="host"), "planq.plan[host]"),
        (Wake.respond(JOB, name="host"), "planq.respond[host]"),
        (Wake(StepRef(JOB, 0, 2), Pool.CPU, "knowledge_search"), "planq.step[knowledge_search]"),
        (Wake(StepRef(JOB, 0, 2), Pool.CPU, "github/issues.list-all"), "planq.step[github/issues.list-all]"),
        (Wake(StepRef(JOB, 0, 2), Pool.CPU, '<b>"\n\x00]'), "planq.step[_b_]"),
        (Wake(StepRef(JOB, 0, 2), Pool.CPU, "x" * 1000), f"planq.step[{'x' * 128}]"),
        (Wake(StepRef(JOB, 1, 0), Pool.IO, "fetch", more=((1, "fetch"),)), "planq.step[fetch]"),
        (Wake(StepRef(JOB, 1, 0), Pool.IO, "fetch", more=((1, "search"),)), "planq.step[several]"),
    ],
)
def test_monitors_see_which_tool_or_agent_it_is(wake: Wake, shown: str) -> None:
    """Pins: what comes from a foreign server breaks no label, and names stay short."""
    message = encode_wake(wake)
    assert message.shadow == shown
    assert message.task in names.TASKS, "by which a worker finds the code"


@pytest.mark.parametrize("links", [TaskLinks("a"), TaskLinks("a", "b"), TaskLinks("a", "b", "b.group", 3)])
def test_links_are_read_as_they_were_written(links: TaskLinks) -> None:
    message = encode_wake(Wake.plan(JOB, links=links))
    headers = {**HEADERS, "root_id": links.root_id, "parent_id": links.parent_id, "shadow": message.shadow}
    headers |= {"group": links.group, "group_index": links.group_index}
    check_message(headers, BODY)
    assert read_links(headers) == links
    assert message.kwargs_repr.endswith(" group=b.group[3]") == (links.group is not None)


def test_who_knows_no_links_names_the_first_task_of_the_job() -> None:
    assert encode_wake(Wake(StepRef(JOB, 2, 7), Pool.IO, "fetch")).links == TaskLinks(f"{JOB}.plan.1")


PARSED = {
    name: poison
    for name, poison in MESSAGES.items()
    if poison.raw is None and "compress" not in name and name != "delivery that is text"
}


@pytest.mark.parametrize("name", PARSED)
def test_what_is_no_wake_up_is_refused_with_a_reason(name: str) -> None:
    poison = PARSED[name]
    with pytest.raises(NoWakeUp) as refused:
        check_message(poison.headers, json.loads(poison.bytes))
    assert 10 < len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("error", "reply"),
    [
        (redis.ResponseError("MISCONF no room"), "MISCONF no room"),
        (redis.ReadOnlyError("a replica", status_code="READONLY"), "READONLY a replica"),
        (redis.ResponseError('Command # 1 (LPUSH q {"secret":..) of pipeline caused error: OOM x'), "OOM x"),
        (redis.ConnectionError("away"), None),
    ],
)
def test_the_reply_of_a_broker_is_found_behind_what_kombu_makes_of_it(error: Exception, reply: str | None) -> None:
    assert reply_of(error) == reply
    wrapped = OperationalError("whatever")
    wrapped.__cause__ = error
    assert reply_of(wrapped) == reply


def test_arguments_of_a_newer_release_are_ignored() -> None:
    arguments = {**encode_wake(Wake.plan(JOB)).kwargs, "of_a_newer_release": [1]}
    check_message(HEADERS, [[], arguments, {}])
    assert decode_wake(**arguments) == Wake.plan(JOB)


@pytest.mark.parametrize("name", ["planq.job.plan.v2", "planq.step.run.v12", "planq.job.respond.v2"])
def test_tasks_of_a_newer_release_are_told_from_those_of_strangers(name: str) -> None:
    with pytest.raises(NewerWakeUp, match="of a newer release"):
        check_message({**HEADERS, "task": name}, BODY)


@given(headers=JSON, payload=JSON)
def test_anything_is_read_or_refused(headers: Any, payload: Any) -> None:
    with pytest.raises(NoWakeUp):
        check_message(headers, payload)


@given(name=st.sampled_from(sorted(HEADERS)), value=JSON)
def test_any_header_is_read_or_refused(name: str, value: Any) -> None:
    assert len(reason({**HEADERS, name: value}, BODY)) < 400


@given(body=st.tuples(JSON, JSON, JSON) | st.tuples(st.just([]), st.dictionaries(st.just("job"), JSON), JSON))
def test_any_body_is_read_or_refused(body: Any) -> None:
    assert len(reason(HEADERS, list(body))) < 400


@given(message=st.binary(max_size=50), reason=st.text(max_size=50))
def test_a_letter_is_read_as_it_was_written(message: bytes, reason: str) -> None:
    letter = DeadLetter.of("planq.io", message * 200, reason)
    assert len(letter.message) <= LONGEST_CHARS
    written = json.dumps({"at": letter.at, "queue": letter.queue, "reason": letter.reason, "message": letter.message})
    assert DeadLetter.read(written) == letter


@given(text=st.binary(max_size=50))
def test_what_planq_did_not_write_into_the_list_is_a_letter_too(text: bytes) -> None:
    assert DeadLetter.read(text).reason == "not written by planq"


def test_a_letter_that_is_too_deep_is_a_letter_too() -> None:
    assert DeadLetter.read("[" * 100_000).reason == "not written by planq"

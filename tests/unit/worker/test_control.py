"""Remote control: what is carried out for anybody at the broker, and what is done again that somebody undid."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.control import Panel
from kombu import Connection, Queue
from kombu.messaging import Consumer

from planq.shared.settings.environment import load_settings
from planq.shared.settings.kinds import COMMANDS, known_commands
from planq.worker.celery.consumer import WakeConsumer
from planq.worker.celery.control import LOOKS, RefusedCommand, check_clock, check_command

REPLIES = "reply.planq.pidbox"
PING: dict[str, Any] = {"method": "ping", "arguments": {}, "destination": None, "pattern": None, "matcher": None}


def test_each_of_celerys_commands_either_looks_or_has_to_be_allowed() -> None:
    aliases = {"dump_conf", "dump_schedule", "dump_reserved", "dump_active", "dump_revoked", "dump_tasks"}
    assert set(Panel.data) - aliases == LOOKS | set(COMMANDS)
    assert not LOOKS & set(COMMANDS)


@pytest.mark.parametrize(
    "body",
    [
        PING,
        {"method": "ping"},
        {**PING, "destination": ["planq-io-1@host"]},
        {**PING, "reply_to": {"exchange": REPLIES, "routing_key": "x"}, "ticket": "x"},
    ],
)
def test_what_looks_is_carried_out(body: Any) -> None:
    check_command(body, LOOKS, REPLIES)


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {**PING, "method": "shutdown"},
        {**PING, "method": ["ping"]},
        {**PING, "arguments": [1]},
        {**PING, "destination": "x"},
        {**PING, "destination": [1]},
        {**PING, "pattern": "(.*)*x", "matcher": "pcre"},
        {**PING, "reply_to": {"exchange": "", "routing_key": "planq.io"}},
        {**PING, "reply_to": {"exchange": REPLIES}},
        {**PING, "reply_to": "x"},
        {**PING, "surplus": 1},
    ],
)
def test_what_does_something_or_is_no_command_is_refused(body: Any) -> None:
    with pytest.raises(RefusedCommand):
        check_command(body, LOOKS, REPLIES)


@pytest.mark.parametrize("clock", [2**53, -1, "1", 1.5, [1]])
def test_a_clock_that_events_could_not_carry_is_refused(clock: Any) -> None:
    check_clock({"clock": 5})
    check_clock({})
    with pytest.raises(RefusedCommand):
        check_clock({"clock": clock})


def test_the_setting_names_commands_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_commands("shutdown, pool_grow") == "shutdown, pool_grow"
    with pytest.raises(ValueError, match="halt"):
        known_commands("shutdown,halt")
    monkeypatch.setenv("PLANQ_REMOTE_CONTROL", "shutdown")
    assert load_settings().remote_control == "shutdown"


@pytest.mark.parametrize(("allowed", "heard"), [(set(), True), ({"cancel_consumer"}, False)])
def test_a_cancelled_consumer_is_begun_again_unless_cancelling_is_allowed(allowed: set[str], heard: bool) -> None:
    queues = {name: Queue(name, routing_key=name) for name in ("planq.io", "planq.io.bulk")}
    with Connection("memory://") as connection, connection.channel() as channel:
        consumer = WakeConsumer.__new__(WakeConsumer)
        consumer.app = SimpleNamespace(
            planq_remote_control=allowed,
            planq_windows={"planq.io.bulk": 3},
            planq_reserve=None,
            amqp=SimpleNamespace(queues=queues),
        )
        consumer.pool, consumer.prefetch_multiplier = SimpleNamespace(num_processes=4), 1
        consumer._own_queues = tuple(queues)
        consumer.task_consumer = Consumer(channel, list(queues.values()))
        windows: list[int] = []
        told: list[str] = []
        consumer.qos = SimpleNamespace(prev=4, update=lambda: told.append("all together"))
        channel.basic_qos = lambda size, count, everywhere: windows.append(count)
        consumer.task_consumer.consume()
        for name in queues:
            consumer.task_consumer.cancel_by_queue(name)
        assert not consumer.task_consumer.consuming_from("planq.io")

        consumer._heal()

        assert [consumer.task_consumer.consuming_from(name) for name in queues] == [heard, heard]
        assert windows == ([4, 3] if heard else []), "each queue has its window again"
        assert told == (["all together"] * 2 if heard else []), "which comes after that of each"

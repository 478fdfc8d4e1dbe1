"""Streams of events over HTTP: all of the log, each event once, from any position, until the job has ended."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import psycopg
import pytest

from planq.api.__main__ import server_options
from planq.api.streams import followers as streams
from planq.shared.kernel.new_ids import new_id
from planq.shared.platform.database import Database
from planq.shared.subjects.conversations.store import ConversationStore
from planq.shared.subjects.streams.contract import Epoch, TextPiece
from planq.shared.subjects.streams.store import PostgresTexts
from tests.integration.api.conftest import Api, MakeApi, a_key, end_key, problem_of, search
from tests.support.clock import move_clock
from tests.support.conversations import message
from tests.support.sse import Frame, frames
from tests.support.waiting import eventually

PLAN = {"type": "tool_calls", "calls": [search()]}


@contextmanager
def following(api: Api, path: str, **options: Any) -> Iterator[tuple[httpx.Response, Iterator[Frame]]]:
    """Follow events; the answer has begun."""
    with httpx.stream("GET", api.url + path, timeout=30, trust_env=False, **options) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield response, frames(response.iter_bytes())


def read(api: Api, path: str, **options: Any) -> list[Frame]:
    """Read a stream to its end."""
    with following(api, path, **options) as (_, found):
        return list(found)


def logged(api: Api, job_id: str) -> list[tuple[str, str]]:
    rows = api.jobs.execute(
        "SELECT xid::text || '-' || sequence AS id, kind FROM events WHERE job_id = %s ORDER BY xid, sequence", job_id
    )
    return [(row["id"], row["kind"]) for row in rows]


def of_log(found: list[Frame]) -> list[tuple[str | None, str]]:
    return [(frame.id, frame.event) for frame in found if frame.id is not None]


def open_streams(api: Api) -> int:
    return len(api.app.state.services.streams)


def tell(api: Api, job_id: str, kind: str, tenant: str = "default") -> None:
    api.jobs.execute("SELECT planq_append_event(%s, %s, %s, NULL)", tenant, job_id, kind)


def test_a_job_is_followed_from_its_first_event_to_its_end(api: Api) -> None:
    job = api.submit()["id"]
    with following(api, f"/jobs/{job}/events") as (response, found):
        first = next(found)
        assert (first.event, first.data["job_id"], first.data["kind"]) == ("job_submitted", job, "job_submitted")
        assert response.headers["cache-control"] == "no-store"
        api.jobs.complete(job)
        rest = list(found)

    assert of_log([first, *rest]) == logged(api, job)
    assert rest[-1] == Frame(None, "job", api.http.get(f"/jobs/{job}").json())
    assert {"sequence", "data", "created_at"} <= first.data.keys()


def test_whatever_a_client_has_seen_it_gets_the_rest_and_then_nothing(api: Api) -> None:
    job = api.submit()["id"]
    api.jobs.run_plan(job, PLAN, {0: "it broke"})
    api.http.post(f"/jobs/{job}/cancel")
    whole = read(api, f"/jobs/{job}/events")
    assert of_log(whole) == logged(api, job)
    assert whole[-1].event == "job"

    for n, frame in enumerate(whole[:-2]):
        assert frame.id is not None
        assert read(api, f"/jobs/{job}/events?after={frame.id}") == whole[n + 1 :]
        header = {"Last-Event-ID": frame.id}
        assert read(api, f"/jobs/{job}/events?after=0-0", headers=header) == whole[n + 1 :], "the header wins"
    last = whole[-2].id
    assert last is not None
    over = api.http.get(f"/jobs/{job}/events", headers={"Last-Event-ID": last})
    assert (over.status_code, over.content) == (204, b"")
    assert read(api, f"/jobs/{job}/events?follow=false") == whole[:-1]
    assert read(api, f"/jobs/{job}/events?follow=false&after={last}") == []


def test_what_is_committed_late_is_put_before_the_end(api: Api, postgres: Any) -> None:
    """The transaction of an event is older than that of the job's end, and is open for longer."""
    job = api.submit()["id"]
    with (
        psycopg.connect(api.settings.database_url) as late,
        following(api, f"/jobs/{job}/events") as (_, found),
    ):
        assert next(found).event == "job_submitted"
        late.execute("SELECT planq_append_event('default', %s, 'drawn_first', NULL)", [job])
        api.jobs.complete(job)
        late.commit()

        assert [frame.event for frame in found] == ["drawn_first", "stage_started", "job_completed", "job"]


@pytest.mark.parametrize("text", ["-1", "x", "", "1", "7-", "1-2-3", "9" * 10_000])
@pytest.mark.parametrize("place", ["query", "header"])
def test_what_is_no_position_is_refused(api: Api, text: str, place: str) -> None:
    job = api.submit()["id"]
    given: dict[str, Any] = {"params": {"after": text}} if place == "query" else {"headers": {"Last-Event-ID": text}}

    for path in (f"/jobs/{job}/events", "/events"):
        problem = problem_of(api.http.get(path, **given), 400, "invalid_position")
        assert "expected the id of an event" in problem["detail"]
        assert len(problem["detail"]) < 400


def test_several_positions_and_one_of_the_future_are_refused(api: Api) -> None:
    job = api.submit()["id"]
    several = [("Last-Event-ID", "1-1"), ("Last-Event-ID", "1-2")]
    problem_of(api.http.get(f"/jobs/{job}/events", headers=several), 400, "invalid_position")
    problem = problem_of(api.http.get(f"/jobs/{job}/events?after=9000000000000-1"), 400, "unknown_position")
    assert "Begin anew" in problem["detail"]


def test_a_position_of_another_job_is_a_place_in_the_log(api: Api) -> None:
    first, second = api.submit()["id"], api.submit()["id"]
    api.http.post(f"/jobs/{first}/cancel")
    api.http.post(f"/jobs/{second}/cancel")
    (made, *_), (other, ended) = logged(api, first), logged(api, second)

    assert of_log(read(api, f"/jobs/{second}/events?after={made[0]}")) == [other, ended]
    assert of_log(read(api, f"/jobs/{first}/events?after={other[0]}")) == logged(api, first)[1:]


def test_a_job_that_is_not_there_or_another_tenants_is_not_found(api: Api) -> None:
    for job in (new_id(), "x"):
        problem_of(api.http.get(f"/jobs/{job}/events"), 404, "not_found")


def test_a_resumed_job_goes_on_after_its_first_end(api: Api) -> None:
    job = api.submit()["id"]
    api.jobs.run_plan(job, PLAN, {0: "it broke"})
    api.http.post(f"/jobs/{job}/cancel")
    tell(api, job, "job_failed")  # as the log of a resumed job has it: an end that was not the last one
    running = api.submit()["id"]
    tell(api, running, "job_failed")

    with following(api, f"/jobs/{running}/events") as (_, found):
        assert [next(found).event for _ in range(2)] == ["job_submitted", "job_failed"]
        tell(api, running, "job_failed")
        assert next(found).event == "job_failed"
        api.jobs.complete(running)
        assert [frame.event for frame in found] == ["stage_started", "job_completed", "job"]
    assert [frame.event for frame in read(api, f"/jobs/{job}/events")][-2:] == ["job_failed", "job"]


def test_jobs_below_are_followed_on_demand(api: Api) -> None:
    top, below, other = (api.submit()["id"] for _ in range(3))
    api.jobs.execute(
        "UPDATE jobs SET parent_job_id = %s, root_job_id = %s, parent_round = 0, parent_step_index = 0, "
        "child_position = 0, depth = 1 WHERE id = %s",
        *(top, top, below),
    )
    with following(api, f"/jobs/{top}/events?children=true") as (_, found):
        assert [next(found).data["job_id"] for _ in range(2)] == [top, below]
        tell(api, other, "elsewhere")
        tell(api, below, "there")
        frame = next(found)
        assert (frame.event, frame.data["job_id"]) == ("there", below)
    with following(api, f"/jobs/{top}/events") as (_, found):
        assert next(found).data["job_id"] == top


def test_a_job_below_another_is_followed_with_those_below_it(api: Api) -> None:
    top, middle, lowest, beside = (api.submit()["id"] for _ in range(4))
    for job, above, depth in ((middle, top, 1), (lowest, middle, 2), (beside, top, 1)):
        api.jobs.execute(
            "UPDATE jobs SET parent_job_id = %s, root_job_id = %s, parent_round = 0, parent_step_index = 0, "
            "child_position = 0, depth = %s WHERE id = %s",
            *(above, top, depth, job),
        )
    with following(api, f"/jobs/{middle}/events?children=true") as (_, found):
        assert [next(found).data["job_id"] for _ in range(2)] == [middle, lowest]
        for job in (top, beside, lowest, middle):
            tell(api, job, "happened")
        assert [next(found).data["job_id"] for _ in range(2)] == [lowest, middle]


def test_a_conversation_is_followed_with_all_its_turns_and_goes_on(api: Api) -> None:
    def turn() -> tuple[str, str]:
        inbound = message("hi", thread="followed")
        received = api.jobs.run(lambda database: ConversationStore(database).receive(inbound))
        return str(received.job_id), str(received.conversation_id)

    first, conversation = turn()
    other = api.submit()["id"]
    below = api.submit()["id"]
    api.jobs.execute(
        "UPDATE jobs SET parent_job_id = %s, root_job_id = %s, parent_round = 0, parent_step_index = 0, "
        "child_position = 0, depth = 1, conversation_id = %s WHERE id = %s",
        *(first, first, conversation, below),
    )
    with following(api, f"/conversations/{conversation}/events") as (_, found):
        assert [next(found).data["job_id"] for _ in range(2)] == [first, below]
        tell(api, other, "elsewhere")
        tell(api, below, "there")
        frame = next(found)
        assert frame.event == "there"
        second, _ = turn()
        assert next(found).data["job_id"] == second
    rest = read(api, f"/conversations/{conversation}/events?follow=false&after={frame.id}")
    assert [one.data["job_id"] for one in rest] == [second]
    problem_of(api.http.get("/conversations/none/events"), 404, "not_found")
    problem_of(api.http.get(f"/conversations/{other}/events"), 404, "not_found")


def test_a_tenants_stream_begins_now_or_at_a_position(make_api: MakeApi) -> None:
    api = make_api()
    old = api.submit()["id"]
    api.jobs.execute("INSERT INTO tenants (id, name) VALUES ('rival', 'rival')")
    with following(api, "/events") as (_, found):
        eventually(lambda: open_streams(api) == 1)
        tell(api, old, "of_a_rival", tenant="rival")
        new = api.submit()["id"]
        assert next(found).data["job_id"] == new
    whole = read(api, "/events?after=0-0&follow=false")
    assert of_log(whole) == [*logged(api, old)[:1], *logged(api, new)]
    assert of_log(read(api, f"/events?after={whole[0].id}&follow=false")) == logged(api, new)
    assert read(api, "/events?follow=false") == []


def say(api: Api, job_id: str, start: int, text: str, *, number: int = 1) -> None:
    """Write what a model says, as a worker does, as soon as somebody follows."""
    piece = TextPiece(Epoch(UUID(job_id), 1, number), "default", "responding", start, text)

    async def work(database: Database) -> bool:
        return (await PostgresTexts(database).write([piece])).get(piece.epoch) == start + len(text)

    eventually(lambda: api.jobs.run(work), what="the text is written")


def said(frame: Frame) -> tuple[str, int, int, str]:
    assert (frame.id, frame.event) == (None, "text")
    return frame.data["stage"], frame.data["try"], frame.data["offset"], frame.data["text"]


def test_texts_come_while_they_are_said_and_whole_to_whoever_comes_late(api: Api) -> None:
    job = api.submit()["id"]
    with following(api, f"/jobs/{job}/events") as (_, found):
        assert next(found).event == "job_submitted"
        say(api, job, 0, "The ca")
        assert said(next(found)) == ("responding", 1, 0, "The ca")
        say(api, job, 6, "pital\nis Rome")
        assert said(next(found)) == ("responding", 1, 6, "pital\nis Rome")
        with following(api, f"/jobs/{job}/events?after={logged(api, job)[0][0]}") as (_, late):
            assert said(next(late)) == ("responding", 1, 0, "The capital\nis Rome")
            say(api, job, 0, "Rome", number=2)
            for frames_of_one in (found, late):
                assert said(next(frames_of_one)) == ("responding", 2, 0, "Rome")
            api.jobs.complete(job)
            assert [frame.event for frame in late][-1] == "job"
    assert "text" not in [frame.event for frame in read(api, f"/jobs/{job}/events")], "it has its answer"


def test_texts_of_jobs_below_come_on_demand_whole_and_each_piece_once(api: Api) -> None:
    """Nothing that an agent said came to who followed the one that had asked it."""
    top, below, later = (api.submit()["id"] for _ in range(3))
    lowered = (
        "UPDATE jobs SET parent_job_id = %s, root_job_id = %s, parent_round = 0, parent_step_index = 0, "
        "child_position = 0, depth = 1 WHERE id = %s"
    )
    api.jobs.execute(lowered, top, top, below)
    say(api, below, 0, "Once ")
    with (
        following(api, f"/jobs/{top}/events?children=true") as (_, found),
        following(api, f"/jobs/{top}/events") as (_, alone),
    ):
        assert [next(found).event for _ in range(2)] == ["job_submitted"] * 2
        assert next(alone).event == "job_submitted"

        def heard(job_id: str) -> tuple[int, str]:
            frame = next(found)
            assert (frame.event, frame.data["job_id"]) == ("text", job_id)
            return frame.data["offset"], frame.data["text"]

        assert heard(below) == (0, "Once ")
        say(api, below, 5, "upon")
        assert heard(below) == (5, "upon")
        say(api, top, 0, "I ask")
        assert heard(top) == (0, "I ask")
        assert next(alone).data["job_id"] == top
        api.jobs.execute(lowered, top, top, later)
        tell(api, later, "job_resumed")
        assert next(found).data["job_id"] == later
        say(api, later, 0, "A time")
        assert heard(later) == (0, "A time")
        api.jobs.complete(below)
        assert next(found).event == "stage_started"
        assert (frame := next(found)).event == "job_completed", frame


def test_texts_of_a_conversation_and_of_jobs_below_come_on_demand_each_piece_once(api: Api) -> None:
    """What the agents said that a turn had asked came to nobody who followed the conversation."""

    def turn() -> tuple[str, str]:
        inbound = message("hi", thread="spoken")
        received = api.jobs.run(lambda database: ConversationStore(database).receive(inbound))
        return str(received.job_id), str(received.conversation_id)

    first, conversation = turn()
    below, later = (api.submit()["id"] for _ in range(2))
    lowered = (
        "UPDATE jobs SET parent_job_id = %s, root_job_id = %s, parent_round = 0, parent_step_index = 0, "
        "child_position = 0, depth = 1, conversation_id = %s WHERE id = %s"
    )
    api.jobs.execute(lowered, first, first, conversation, below)
    say(api, below, 0, "Once ")
    path = f"/conversations/{conversation}/events"
    with (
        following(api, f"{path}?children=true") as (_, found),
        following(api, path) as (_, silent),
    ):
        for stream in (found, silent):
            assert [next(stream).event for _ in range(2)] == ["job_submitted"] * 2

        def heard(job_id: str) -> tuple[int, str]:
            frame = next(found)
            assert (frame.event, frame.data["job_id"]) == ("text", job_id)
            return frame.data["offset"], frame.data["text"]

        assert heard(below) == (0, "Once ")
        say(api, below, 5, "upon")
        assert heard(below) == (5, "upon")
        say(api, first, 0, "I ask")
        assert heard(first) == (0, "I ask")
        api.jobs.execute(lowered, first, first, conversation, later)
        tell(api, later, "job_resumed")
        assert next(found).data["job_id"] == later
        say(api, later, 0, "A time")
        assert heard(later) == (0, "A time")
        second, _ = turn()
        assert next(found).data["job_id"] == second
        say(api, second, 0, "And then")
        assert heard(second) == (0, "And then")
        assert [next(silent).event for _ in range(2)] == ["job_resumed", "job_submitted"]


def test_heads_begin_no_stream(api: Api) -> None:
    job = api.submit()["id"]
    for path in (f"/jobs/{job}/events", "/events"):
        answer = api.http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert open_streams(api) == 0


def test_no_more_streams_than_allowed_and_a_place_is_free_again(make_api: MakeApi) -> None:
    api = make_api(max_streams=1)
    with following(api, "/events"):
        refused = api.http.get("/events")
        problem_of(refused, 503, "too_many_streams")
        assert refused.headers["retry-after"]
        assert "planq_open_streams 1.0" in api.http.get("/metrics").text
    eventually(lambda: open_streams(api) == 0, what="the client that left is noticed")
    with following(api, "/events"):
        pass


@pytest.mark.parametrize("ends", ["revoked", "disabled"])
def test_a_stream_ends_when_its_key_does_without_a_heartbeat(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(streams, "_HEARTBEAT_SECONDS", 3_600.0)
    api = make_api(require_keys=True)
    key, text = a_key(api)
    with following(api, "/events", headers={"Authorization": f"Bearer {text}"}) as (_, found):
        eventually(lambda: open_streams(api) == 1)
        end_key(api, key, ends)
        assert list(found) == []
    eventually(lambda: open_streams(api) == 0)


def test_a_stop_ends_streams_at_once_and_they_count_as_no_latency(make_api: MakeApi) -> None:
    api = make_api()
    job = api.submit()["id"]
    with ThreadPoolExecutor() as pool, following(api, f"/jobs/{job}/events") as (_, found):
        next(found)
        stopped: Future[None] = pool.submit(api.app.state.services.release_clients)
        assert list(found) == []
        stopped.result()
    eventually(lambda: open_streams(api) == 0)
    problem_of(api.http.get("/events"), 503, "too_many_streams")
    slow = 'planq_http_request_seconds_bucket{le="2.5",method="GET",route="/jobs/{job_id}/events"}'
    assert f"{slow} 1.0" in api.http.get("/metrics").text


def test_a_client_that_does_not_read_is_cut_off_and_can_come_back_for_all(
    database_url: str, api_valkey: str, make_api: MakeApi
) -> None:
    api = make_api(server=server_options())
    job = api.submit()["id"]
    with socket.create_connection(("127.0.0.1", api.port)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        silent.sendall(f"GET /jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        eventually(lambda: open_streams(api) == 1)
        blob = "x" * 100_000
        for _ in range(80):
            api.jobs.execute(
                "SELECT planq_append_event('default', %s, 'large', json_build_object('text', %s::text))", job, blob
            )
        eventually(lambda: open_streams(api) == 0, what="the stream has ended")
    api.http.post(f"/jobs/{job}/cancel")
    assert of_log(read(api, f"/jobs/{job}/events")) == logged(api, job)


def test_the_log_comes_as_pages_in_either_order_for_who_wants_json(api: Api) -> None:
    job = api.submit()["id"]
    for number in range(3):
        tell(api, job, f"told_{number}")
    kinds = ["job_submitted", "told_0", "told_1", "told_2"]

    def page(path: str, accept: str = "application/json", **params: Any) -> Any:
        return api.http.get(path, params=params, headers={"Accept": accept}).json()

    for order, expected in (("asc", kinds), ("desc", kinds[::-1])):
        found = page(f"/jobs/{job}/events", order=order)
        assert ([one["kind"] for one in found["events"]], found["next"]) == (expected, None)
        assert [(one["id"], one["kind"]) for one in found["events"]] in (logged(api, job), logged(api, job)[::-1])
        first = page(f"/jobs/{job}/events", order=order, limit=2)
        rest = page(f"/jobs/{job}/events", order=order, limit=2, after=first["next"], children=True)
        assert [one["kind"] for one in first["events"] + rest["events"]] == expected
        assert rest["next"] is None
    newest = page("/events", order="desc", limit=2)
    older = page("/events", order="desc", limit=2, after=newest["next"])
    assert [one["kind"] for one in newest["events"] + older["events"]] == kinds[::-1]
    assert [one["kind"] for one in page("/events", after=older["events"][0]["id"])["events"]] == kinds[2:]
    problem_of(api.http.get(f"/jobs/{job}/events", params={"limit": 1_001}), 422, "invalid_request")


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream", "text/html, */*;q=0.8", "application/json;q=0"])
def test_who_does_not_prefer_json_gets_the_stream(api: Api, accept: str) -> None:
    job = api.submit()["id"]

    found = api.http.get(f"/jobs/{job}/events?follow=false", headers={"Accept": accept})

    assert found.headers["Content-Type"].startswith("text/event-stream")


def test_a_transaction_that_holds_events_back_is_named(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Streams were silent, and nothing said why."""
    api = make_api()  # one of its own: it moves the database's clock
    monkeypatch.setattr(streams, "_ASK_EVERY_SECONDS", 0.0)

    def told() -> str:
        check = api.http.get("/statusz").json()["checks"]["events"]
        assert check["ok"], "jobs run all the same"
        return str(check["detail"])

    def logged() -> list[tuple[int, str]]:
        found = [vars(one) for one in caplog.records if one.getMessage() == "events_held_back"]
        return [(one["pid"], one["application"]) for one in found]

    assert told() == "read as they are committed"
    with psycopg.connect(api.settings.database_url, application_name="night load") as holder:
        holder.execute("SELECT pg_current_xact_id()")
        api.submit()
        api.jobs.run(lambda database: move_clock(database, timedelta(minutes=1)))
        pid = holder.info.backend_pid
        assert _held_seconds(api) >= 60
        with httpx.stream("GET", f"{api.url}/events", timeout=30, trust_env=False) as stream:
            comment = next(line for line in stream.iter_lines() if line.startswith(": held back"))
            assert "night load" not in comment
            assert eventually(logged) == [(pid, "night load")]
        eventually(lambda: f"night load (process {pid})" in told(), what="the process is named")

    eventually(lambda: told() == "read as they are committed", what="nothing holds events back any more")
    assert _held_seconds(api) == 0


def _held_seconds(api: Api) -> float:
    lines = api.http.get("/metrics").text.splitlines()
    (line,) = [one for one in lines if one.startswith("planq_events_held_seconds ")]
    return float(line.split()[1])

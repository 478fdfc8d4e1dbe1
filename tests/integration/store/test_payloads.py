"""Large outputs: the same in PostgreSQL, a folder and a bucket; put, read, collected, whoever dies in between."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from planq.shared.kernel.limits import Limits
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import Strategy
from planq.shared.kernel.submission import Submission
from planq.shared.platform.database import Database, json_text
from planq.shared.platform.errors import DatabaseUnavailable, Misconfigured, StorageUnavailable
from planq.shared.subjects.jobs.store import submission_values
from planq.shared.subjects.payloads.objects import BucketObjects, FolderObjects, ObjectStore, open_objects
from planq.shared.subjects.payloads.store import SLICE_BYTES, PayloadStore
from tests.support.s3 import BUCKET, s3_server
from tests.support.tiers import some

BODY = b'{"text": "' + b"x" * (3 * SLICE_BYTES) + b'"}'
PREVIEW = b'{"value": "x", "is_whole": false}'
OLD = "UPDATE {} SET created_at = now() - interval '2 hours'"

Play = Callable[[Callable[[Database, PayloadStore], Awaitable[Any]]], Any]


@pytest.fixture(scope="module")
def aws() -> Iterator[dict[str, str]]:
    """A server that speaks S3."""
    with s3_server() as variables:
        yield variables


@pytest.fixture(params=["database", "folder", "bucket"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What PLANQ_PAYLOADS says, for each kind of storage in turn."""
    if request.param == "bucket":
        for name, value in request.getfixturevalue("aws").items():
            monkeypatch.setenv(name, value)
        return f"s3://{BUCKET}/{uuid4().hex}"
    return "" if request.param == "database" else f"file://{tmp_path}/large%20outputs"


@pytest.fixture
def play(database_url: str, address: str) -> Play:
    """`play(scenario)`: run `scenario(database, payloads)` and return what it returns."""

    def run(scenario: Callable[[Database, PayloadStore], Awaitable[Any]]) -> Any:
        async def inside() -> Any:
            database = Database(database_url, max_connections=4)
            await database.open()
            try:
                return await scenario(database, PayloadStore(database, open_objects(address)))
            finally:
                await database.close()

        return asyncio.run(inside())

    return run


async def sql(database: Database, statement: str, *parameters: Any) -> list[Any]:
    async with database.connection() as connection:
        cursor = await connection.execute(statement.encode(), parameters)
        return list(await cursor.fetchall()) if cursor.description else []


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def counts(database: Database) -> tuple[int, int]:
    """How many payloads and noted objects there are."""
    (row,) = await sql(
        database, "SELECT (SELECT count(*) FROM payloads) AS p, (SELECT count(*) FROM payload_objects) AS o"
    )
    return row["p"], row["o"]


async def read(pieces: AsyncIterator[bytes]) -> list[bytes]:
    return [piece async for piece in pieces]


def test_bytes_come_back_whole_and_in_slices_under_their_hash(play: Play) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        assert digest == hashlib.sha256(BODY).digest()
        assert await payloads.get("default", digest) == BODY
        size, pieces = await payloads.open("default", digest)
        slices = await read(pieces)
        assert (size, b"".join(slices)) == (len(BODY), BODY)
        assert max(map(len, slices)) < 2 * SLICE_BYTES

    play(scenario)


def test_the_same_bytes_are_stored_once_a_tenant_and_nobody_reads_another_tenants(play: Play, address: str) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        first, again = [await payloads.put("default", BODY, PREVIEW) for _ in range(2)]
        assert first == again
        assert await counts(database) == (1, 1 if address else 0)
        with pytest.raises(StorageUnavailable):
            await payloads.get("somebody else", first)

    play(scenario)


def test_many_puts_of_the_same_bytes_at_once_leave_one_payload_that_can_be_read(play: Play) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digests = await asyncio.gather(*(payloads.put("default", BODY, PREVIEW) for _ in range(4)))
        assert len(set(digests)) == 1
        await sql(database, OLD.format("payload_objects"))
        while await payloads.collect(10):
            pass
        assert (await counts(database))[0] == 1
        assert await payloads.get("default", digests[0]) == BODY

    play(scenario)


def test_what_nobody_refers_to_is_collected_after_an_hour_and_not_before(play: Play) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        assert await payloads.collect(10) == 0
        for table in ("payloads", "payload_objects"):
            await sql(database, OLD.format(table))
        assert await payloads.collect(10) == 1
        assert await counts(database) == (0, 0)
        with pytest.raises(StorageUnavailable, match="is gone"):
            await payloads.get("default", digest)
        assert await payloads.collect(10) == 0

    play(scenario)


def test_a_put_of_an_old_payload_saves_it_from_being_collected(play: Play) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        for table in ("payloads", "payload_objects"):
            await sql(database, OLD.format(table))
        await payloads.put("default", BODY, PREVIEW)
        assert await payloads.collect(10) == 0
        assert await payloads.get("default", digest) == BODY

    play(scenario)


def test_a_payload_that_is_being_referred_to_is_not_collected(play: Play) -> None:
    """The reference is in a transaction that has not committed: the collector neither waits for it nor removes it."""

    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        await sql(database, OLD.format("payloads"))
        async with database.connection() as connection, connection.transaction():
            await connection.execute("SELECT planq_touch_payload('default', %s)", [digest])
            assert await payloads.collect(10) == 0
        assert await payloads.collect(10) == 0
        assert await payloads.get("default", digest) == BODY

    play(scenario)


def test_a_reference_to_a_payload_that_has_just_been_collected_fails_and_may_be_tried_again(play: Play) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        await sql(database, "DELETE FROM payloads")
        with pytest.raises(DatabaseUnavailable):
            await database.call("planq_touch_payload", "default", digest)
        await payloads.put("default", BODY, PREVIEW)
        await database.call("planq_touch_payload", "default", digest)

    play(scenario)


def test_the_bytes_of_an_input_are_not_collected_while_a_job_that_refers_to_them_is_stored(play: Play) -> None:
    """A job that is run again refers to bytes as old as the first job, which retention may remove meanwhile."""

    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        await sql(database, OLD.format("payloads"))
        part = {"type": "image", "media_type": "image/png", "sha256": digest.hex(), "size": len(BODY)}
        url = {"type": "image", "url": "https://example.org/a.png"}
        job = Submission(new_id(), "default", "", Strategy.PLAN, "offline", Limits(), parts=[part, url])
        jobs = json_text([submission_values(job)])
        async with database.connection() as connection, connection.transaction():
            await connection.execute("SELECT * FROM planq_submit_jobs(%s, NULL, planq_now())", [jobs])
            assert await payloads.collect(10) == 0
        assert await payloads.get("default", digest) == BODY
        await sql(database, "DELETE FROM jobs")
        await sql(database, "DELETE FROM payloads")
        with pytest.raises(DatabaseUnavailable):
            await database.call_table("planq_submit_jobs", jobs, None, None)

    play(scenario)


class Dying(Exception):
    """Stands for the death of the process."""


def opened(address: str) -> ObjectStore:
    objects = open_objects(address)
    assert objects is not None
    return objects


def objects_of(address: str, dies: str) -> ObjectStore:
    """A store of objects that dies before or after it has written one."""

    objects = opened(address)
    put = objects.put

    async def mortal(location: str, body: bytes) -> None:
        if dies == "after":
            await put(location, body)
        raise Dying

    objects.put = mortal  # type: ignore[method-assign]
    return objects


@pytest.mark.parametrize("dies", ["before", "after"])
@pytest.mark.parametrize("address", some(["folder", "bucket"], "folder"), indirect=True)
def test_a_death_around_the_writing_of_an_object_leaves_nothing_that_is_not_collected(
    play: Play, address: str, dies: str, tmp_path: Path
) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        with pytest.raises(Dying):
            await PayloadStore(database, objects_of(address, dies)).put("default", BODY, PREVIEW)
        assert await counts(database) == (0, 1)
        assert await payloads.collect(10) == 0, "it may still be on its way"
        await sql(database, OLD.format("payload_objects"))
        assert await payloads.collect(10) == 1
        assert await counts(database) == (0, 0)
        assert files_in(tmp_path) == []

    play(scenario)


@pytest.mark.parametrize("address", ["folder", "bucket"], indirect=True)
def test_a_collector_that_dies_between_row_and_object_is_taken_over(
    play: Play, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        await payloads.put("default", BODY, PREVIEW)
        for table in ("payloads", "payload_objects"):
            await sql(database, OLD.format(table))
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, "delete", lambda *_: (_ for _ in ()).throw(Dying()))
            with pytest.raises(Dying):
                await payloads.collect(10)
        assert await counts(database) == (0, 1)
        assert await payloads.collect(10) == 1
        assert await counts(database) == (0, 0)

    play(scenario)


@pytest.mark.parametrize("address", ["folder"], indirect=True)
def test_while_the_object_store_is_away_the_database_takes_the_bytes(play: Play, address: str) -> None:
    class Away(FolderObjects):
        async def put(self, location: str, body: bytes) -> None:
            raise StorageUnavailable("away")

    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await PayloadStore(database, Away(address)).put("default", BODY, PREVIEW)
        assert await payloads.get("default", digest) == BODY
        assert await PayloadStore(database).get("default", digest) == BODY

    play(scenario)


Harm = Callable[[bytes], bytes | None]
"""What happens to an object behind planq's back: its bytes become others, or None where it is lost."""

HARMS: dict[str, Harm] = {
    "other_bytes": lambda body: body[:-3] + b"!" + body[-2:],
    "shorter": lambda body: body[: len(body) // 2],
    "longer": lambda body: body + b" ",
    "empty": lambda _: b"",
    "lost": lambda _: None,
}


async def harm(objects: ObjectStore, location: str, how: str) -> None:
    """Do to an object what no code of planq's does."""
    body = HARMS[how](BODY)
    await objects.remove(location)
    if body is not None:
        await objects.put(location, body)


@pytest.mark.parametrize("how", HARMS)
@pytest.mark.parametrize("address", some(["folder", "bucket"], "folder"), indirect=True)
def test_an_object_that_is_not_right_is_never_handed_out_and_is_stored_again(
    play: Play, address: str, how: str
) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        (row,) = await sql(database, "SELECT location FROM payloads")
        await harm(opened(address), row["location"], how)
        for reading in (payloads.get, payloads.open):
            with pytest.raises(StorageUnavailable, match="does not give" if how == "lost" else "damaged") as told:
                await reading("default", digest)
            assert row["location"] in told.value.message
            assert told.value.details["place"].startswith(address)

        assert await payloads.put("default", BODY, PREVIEW) == digest
        assert await payloads.get("default", digest) == BODY
        _, pieces = await payloads.open("default", digest)
        assert b"".join(await read(pieces)) == BODY
        assert await counts(database) == (1, 2)
        await sql(database, OLD.format("payload_objects"))
        assert await payloads.collect(10) == 1, "the one that was not right"
        assert await payloads.get("default", digest) == BODY

    play(scenario)


@pytest.mark.parametrize("address", ["folder"], indirect=True)
def test_many_puts_at_once_of_what_is_damaged_leave_one_that_can_be_read(play: Play, tmp_path: Path) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        (file,) = files_in(tmp_path)
        file.write_bytes(b"")
        await asyncio.gather(*(payloads.put("default", BODY, PREVIEW) for _ in range(4)))
        (row,) = await sql(database, "SELECT location FROM payloads")
        await sql(database, OLD.format("payload_objects"))
        while await payloads.collect(10):
            pass
        assert [str(path.relative_to(file.parents[1])) for path in files_in(tmp_path)] == [row["location"]]
        assert await payloads.get("default", digest) == BODY

    play(scenario)


@pytest.mark.parametrize("address", ["folder", "bucket"], indirect=True)
def test_what_cannot_be_read_any_more_is_taken_by_the_database(play: Play, address: str) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        without = PayloadStore(database)
        with pytest.raises(StorageUnavailable, match="PLANQ_PAYLOADS"):
            await without.get("default", digest)
        assert await without.put("default", BODY, PREVIEW) == digest
        assert await without.get("default", digest) == BODY
        assert await payloads.get("default", digest) == BODY

    play(scenario)


@pytest.mark.parametrize("address", ["folder"], indirect=True)
def test_a_reader_goes_on_where_the_bytes_were_stored_anew_meanwhile(play: Play, address: str) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        objects = opened(address)
        stream = objects.stream

        async def late(location: str, chunk_bytes: int) -> AsyncIterator[bytes]:
            objects.stream = stream  # type: ignore[method-assign]
            await harm(objects, location, "lost")
            await payloads.put("default", BODY, PREVIEW)
            async for piece in stream(location, chunk_bytes):
                yield piece

        objects.stream = late  # type: ignore[method-assign]
        assert await PayloadStore(database, objects).get("default", digest) == BODY

    play(scenario)


@pytest.mark.parametrize("address", ["database", "folder", "bucket"], indirect=True)
def test_what_is_damaged_while_it_is_handed_out_ends_before_its_end(play: Play, address: str) -> None:
    async def scenario(database: Database, payloads: PayloadStore) -> None:
        digest = await payloads.put("default", BODY, PREVIEW)
        _, pieces = await payloads.open("default", digest)
        if address:
            (row,) = await sql(database, "SELECT location FROM payloads")
            await harm(opened(address), row["location"], "other_bytes")
        else:
            await sql(
                database, "UPDATE payloads SET body = overlay(body PLACING '!'::bytea FROM octet_length(body) - 2)"
            )
        got: list[bytes] = []

        async def handed_out() -> None:
            async for piece in pieces:
                got.append(piece)

        with pytest.raises(StorageUnavailable, match="damaged"):
            await handed_out()
        assert len(b"".join(got)) < len(BODY)

    play(scenario)


@pytest.mark.parametrize("address", ["folder"], indirect=True)
def test_a_file_and_its_names_are_on_the_disk_before_a_row_refers_to_it(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    async def scenario(database: Database, payloads: PayloadStore) -> None:
        monkeypatch.setattr(os, "fsync", noted)
        execute = database.execute

        async def executed(name: str, /, **parameters: Any) -> int:
            done.append(name)
            return await execute(name, **parameters)

        insert = payloads._insert

        async def inserted(statement: bytes, row: dict[str, Any]) -> int:
            done.append("the row")
            return await insert(statement, row)

        monkeypatch.setattr(database, "execute", executed)
        monkeypatch.setattr(payloads, "_insert", inserted)
        await payloads.put("default", BODY, PREVIEW)
        (file,) = files_in(tmp_path)
        known, folder, root = str(file), str(file.parent), str(file.parents[1])
        assert done == ["note_object", root, known, folder, "the row"]

    play(scenario)


@pytest.mark.parametrize("address", ["folder"], indirect=True)
def test_a_disk_that_does_not_keep_what_it_was_given_is_not_believed(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def scenario(database: Database, payloads: PayloadStore) -> None:
        monkeypatch.setattr(os, "fsync", broken)
        digest = await payloads.put("default", BODY, PREVIEW)
        (row,) = await sql(database, "SELECT location FROM payloads")
        assert row["location"] is None
        assert await payloads.get("default", digest) == BODY

    play(scenario)


def test_a_bucket_that_is_not_there_is_told(aws: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in aws.items():
        monkeypatch.setenv(name, value)
    asyncio.run(BucketObjects(f"s3://{BUCKET}/here").check())
    with pytest.raises(StorageUnavailable, match="404"):
        asyncio.run(BucketObjects("s3://no-such-bucket/here").check())


@pytest.mark.parametrize(
    "url",
    ["ftp://host/x", "nonsense", "s3://", "s3://[", "file://relative/x", "file:///proc/none/x", "file:///dev/null"],
)
def test_an_address_that_cannot_be_one_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(Misconfigured, match="PLANQ_PAYLOADS"):
        open_objects(url)


def test_a_connection_that_sent_a_large_output_does_not_keep_its_memory(database_url: str) -> None:
    """libpq keeps what it has sent at once, twice over, until its connection ends."""

    async def inside() -> None:
        database = Database(database_url, max_connections=1)
        await database.open()
        payloads = PayloadStore(database)

        async def server() -> int:
            (row,) = await sql(database, "SELECT pg_backend_pid() AS pid")
            pid: int = row["pid"]
            return pid

        first = await server()
        digest = await payloads.put("default", BODY[: SLICE_BYTES // 2], PREVIEW)
        assert await server() == first
        large = await payloads.put("default", BODY, PREVIEW)
        assert await server() != first
        assert await payloads.get("default", large) == BODY
        assert await payloads.get("default", digest) == BODY[: SLICE_BYTES // 2]
        await database.close()

    asyncio.run(inside())

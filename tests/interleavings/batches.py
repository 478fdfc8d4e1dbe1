"""Operations on a batch: of its lines one runs, one waits, one has ended, one has failed, one is still to begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from planq.shared.kernel.claims import StageClaim
from planq.shared.kernel.new_ids import new_id
from planq.shared.kernel.states import JobStatus
from planq.shared.kernel.sweep import ExpiredJob
from planq.shared.platform.database import as_json
from planq.shared.subjects.batches.control import BatchControl
from planq.shared.subjects.batches.rules import FileLine
from planq.shared.subjects.batches.store import BatchStore, NewBatch
from planq.shared.subjects.batches.sweep import LineSweep
from planq.shared.subjects.webhooks.endpoints import WebhookStore
from tests.interleavings.arena import Operation, Session
from tests.interleavings.jobs import CALL, claimed, out_of_time
from tests.support.batches import item
from tests.support.claiming import claim_stage
from tests.support.stored import BOOM


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of five lines, and an upload that its holder has not ended."""

    tenant: str
    id: UUID
    runs: StageClaim
    ended: UUID
    failed: UUID
    queued: UUID
    upload: UUID
    holder: UUID

    @property
    def names(self) -> Mapping[UUID, str]:
        """See `Scene`."""
        jobs = {self.runs.job_id: "runs", self.ended: "ended", self.failed: "failed", self.queued: "queued"}
        return {**jobs, self.id: "batch", self.upload: "upload", self.holder: "holder"}


async def build(session: Session) -> Batch:
    """Build the scene, in a tenant with an endpoint that is told of everything."""
    tenant = await session.tenant()
    await WebhookStore(session.database).create(tenant, "https://example.com/hook", ["batch.*"], "", 10)
    batch, holder = new_id(), new_id()
    await session.run(
        "INSERT INTO batches (id, tenant_id, status, total, validated_lines, valid) "
        "VALUES (%s, %s, 'in_progress', 5, 5, 5)",
        *(batch, tenant),
    )
    for line in range(1, 6):
        await session.run(
            "INSERT INTO batch_lines (batch_id, line, tenant_id, custom_id, status, body) "
            "VALUES (%s, %s, %s, %s, 'valid', %s)",
            *(batch, line, tenant, f"line-{line}", as_json(item("x", tenant))),
        )
    await sweep(session).admit(4)
    lines = "SELECT job_id FROM batch_lines WHERE batch_id = %s AND job_id IS NOT NULL ORDER BY line"
    runs, ended, failed, queued = [row["job_id"] for row in await session.run(lines, batch)]
    assert await session.store.end_job(await claimed(session, failed), JobStatus.FAILED, None, BOOM, [CALL])
    await settle(session)
    running = await claimed(session, runs)
    assert await session.store.end_job(await claimed(session, ended), JobStatus.COMPLETED, "done", None, [CALL])
    upload = NewBatch(new_id(), tenant)
    await BatchStore(session.database, holder).begin(upload)
    return Batch(tenant, batch, running, ended, failed, queued, upload.id, holder)


async def gone(session: Session, scene: Batch) -> None:
    """Let somebody delete the job of a line."""
    await session.run("DELETE FROM jobs WHERE id = %s", scene.queued)


async def cancelled(session: Session, scene: Batch) -> None:
    """Let the batch be cancelled, but none of its lines yet."""
    await control(session).cancel(scene.tenant, scene.id)


async def stopped(session: Session, scene: Batch) -> None:
    """Let nothing more of the batch begin."""
    await control(session).pause(scene.tenant, scene.id)


def control(session: Session) -> BatchControl:
    """Return what people ask of batches."""
    return BatchControl(session.database)


def sweep(session: Session) -> LineSweep:
    """Return what a sweep does for lines."""
    return LineSweep(session.database)


async def settle(session: Session) -> int:
    """Serve the batches whose jobs have ended, as a sweep does; return how many jobs these are."""
    sets = await session.registry.unserved_ends(10)
    return sum([len(jobs) * (await session.registry.serve_ends(jobs)).applied for jobs in sets])


def store(session: Session, scene: Batch) -> Any:
    """Return the store of who holds the upload."""
    return BatchStore(session.database, scene.holder)


OPERATIONS: tuple[Operation[Batch], ...] = (
    Operation("admit lines", lambda s, b: sweep(s).admit(10), passes=True),
    Operation("settle lines", lambda s, b: settle(s), passes=True),
    Operation(
        "fail lost lines",
        lambda s, b: s.database.execute("tidy_lost_lines"),
        gone,
        breaks="line_differs",
        passes=True,
    ),
    Operation("cancel batch", lambda s, b: control(s).cancel(b.tenant, b.id)),
    Operation("cancel lines", lambda s, b: sweep(s).cancel(10), cancelled, passes=True),
    Operation("pause batch", lambda s, b: control(s).pause(b.tenant, b.id)),
    Operation("resume batch", lambda s, b: control(s).resume(b.tenant, b.id), stopped),
    Operation("retry batch", lambda s, b: control(s).retry(b.tenant, b.id)),
    Operation("claim job", lambda s, b: claim_stage(s.store, b.queued, [JobStatus.QUEUED])),
    Operation("complete job", lambda s, b: s.store.end_job(b.runs, JobStatus.COMPLETED, "done", None, [CALL])),
    Operation("fail job", lambda s, b: s.store.end_job(b.runs, JobStatus.FAILED, None, BOOM, [CALL])),
    Operation("cancel job", lambda s, b: s.requests.cancel(b.tenant, b.runs.job_id)),
    Operation("resume failed job", lambda s, b: s.requests.resume(b.tenant, b.failed, after=0)),
    Operation(
        "expire job",
        lambda s, b: s.registry.expire_job(ExpiredJob(b.queued, True, 1.0), BOOM),
        lambda s, b: out_of_time(s, b.queued, "expires_at"),
    ),
    Operation("add lines", lambda s, b: store(s, b).add_lines(b.tenant, b.upload, [FileLine(1, "{}")])),
    Operation("end upload", lambda s, b: store(s, b).end_upload(b.tenant, b.upload, 0, 0)),
    Operation("drop upload", lambda s, b: store(s, b).drop(b.tenant, b.upload)),
)

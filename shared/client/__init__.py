"""The client of planq's HTTP API for other programs, and for the command line: `Client`, and `AsyncClient` beside it.

What is sent and what an answer means is written once, without I/O, as generators that yield requests and pauses
(`exchanges`, `following`). `blocking` and `awaiting` carry these out over httpx, and do nothing else.
"""

from planq.shared.client.awaiting import AsyncBatchHandle, AsyncClient, AsyncJobHandle
from planq.shared.client.blocking import BatchHandle, Client, JobHandle
from planq.shared.client.following import StreamEvent
from planq.shared.client.outcome import JobCancelled, JobFailed, JobPartial

__all__ = [
    "AsyncBatchHandle",
    "AsyncClient",
    "AsyncJobHandle",
    "BatchHandle",
    "Client",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobPartial",
    "StreamEvent",
]

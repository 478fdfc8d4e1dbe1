"""The client of planq's HTTP API for other programs, and for the command line: `Client` and `AsyncClient`.

What is sent and what an answer means is written once, without I/O, as generators that yield requests and pauses
(`exchanges`, `following`). The two clients in `clients` carry these out over httpx, and do nothing else.
"""

from planq.shared.client.clients import AsyncBatchHandle, AsyncClient, AsyncJobHandle, BatchHandle, Client, JobHandle
from planq.shared.client.facts import JobCancelled, JobFailed, JobPartial
from planq.shared.client.following import StreamEvent

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

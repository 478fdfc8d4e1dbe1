"""Where large outputs lie: bytes under their SHA-256, apart from the steps that they belong to."""

from __future__ import annotations

from typing import Protocol


class Payloads(Protocol):
    """Content-addressed storage of one tenant's large outputs.

    What nobody refers to is removed about an hour after it was put last; what a step refers to stays.
    Both methods raise `DatabaseUnavailable` when the database does not answer.
    """

    async def put(self, tenant_id: str, body: bytes, preview: bytes) -> bytes:
        """Store bytes and return their SHA-256; the same bytes again change nothing but the time of the last put.

        `preview` is the JSON of what is shown of them where the whole would be too much. Called right before the
        transaction that refers to them, outside of any. Raises `StorageFull`, and stores nothing, where the tenant
        would keep more than it may.
        """
        ...

    async def get(self, tenant_id: str, digest: bytes) -> bytes:
        """Return the bytes.

        Raises `StorageUnavailable` when what holds them does not answer, or has other bytes or none.
        """
        ...

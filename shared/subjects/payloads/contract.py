"""The contract for large outputs: bytes under their SHA-256."""

from __future__ import annotations

from typing import Protocol


class Payloads(Protocol):
    """Content-addressed storage of a tenant's large outputs; raises `DatabaseUnavailable`.

    Unreferenced bytes are removed about an hour after the last put.
    """

    async def put(self, tenant_id: str, body: bytes, preview: bytes) -> bytes:
        """Store bytes and return their SHA-256; `preview` is JSON to show instead of the whole.

        Called right before the transaction that refers to them. Raises `StorageFull` without storing anything.
        """
        ...

    async def get(self, tenant_id: str, digest: bytes) -> bytes:
        """Return the bytes; raises `StorageUnavailable` if they are unreachable, damaged or missing."""
        ...

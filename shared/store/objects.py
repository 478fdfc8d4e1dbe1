"""A folder or an S3-compatible bucket as the place of large outputs, through `obstore`.

Imported only where PLANQ_PAYLOADS names one. Credentials, region and endpoint of S3 come from the standard `AWS_…`
variables, which obstore reads. An object is written once, under a name that no other object ever has, and never
changed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from shared.domain.errors import Misconfigured, StorageUnavailable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_RETRY: RetryConfig = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
"""obstore's own three minutes are longer than most steps may take; the engine tries again by itself."""

_REQUEST_SECONDS = timedelta(seconds=60)
"""Of one request; the default of 30 s needs 2 MB/s for the largest output."""

SCHEMES = ("file", "s3")


class ObjectStore:
    """Objects below one address; every method raises `StorageUnavailable` when they cannot be reached."""

    def __init__(self, url: str) -> None:
        """Reach nothing yet; raises `Misconfigured` when the address cannot be used."""
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        # FileNotFoundError is how obstore reports an object that is not there, and any other trouble with a folder.
        self._failures = (BaseError, OSError, ValueError)
        scheme = url.partition("://")[0]
        if scheme not in SCHEMES:
            raise Misconfigured(f"PLANQ_PAYLOADS: expected file:///folder or s3://bucket/prefix, found {url[:80]!r}")
        options: dict[str, Any] = {"mkdir": True} if scheme == "file" else _s3_options()
        try:
            self._store = from_url(url, **options)
        except (*self._failures, TypeError) as error:
            raise Misconfigured(f"PLANQ_PAYLOADS: {_first_line(error)}") from error

    async def put(self, location: str, body: bytes) -> None:
        """Write an object; after an error it may be there or not."""
        try:
            # In one request: the parts of an upload that breaks off would lie about where no listing shows them.
            await self._store.put_async(location, body, use_multipart=False)
        except self._failures as error:
            raise _unavailable("takes no objects", error) from error

    async def get(self, location: str) -> bytes:
        """Return an object's bytes."""
        try:
            found = await self._store.get_async(location)
            return bytes(await found.bytes_async())
        except self._failures as error:
            raise _unavailable(f"does not give the object {location}", error) from error

    async def stream(self, location: str, chunk_bytes: int) -> AsyncIterator[bytes]:
        """Yield an object's bytes in chunks of about that size; an object that is not there is an error at once."""
        try:
            found = await self._store.get_async(location)
            async for chunk in found.stream(min_chunk_size=chunk_bytes):
                yield bytes(chunk)
        except self._failures as error:
            raise _unavailable(f"does not give the object {location}", error) from error

    async def delete(self, locations: Collection[str]) -> None:
        """Remove objects; what is not there is no error."""
        for location in locations:
            try:
                await self._store.delete_async(location)
            except FileNotFoundError:
                continue
            except self._failures as error:
                raise _unavailable("removes no objects", error) from error

    async def check(self) -> None:
        """Write, read and remove a small object."""
        location, body = f"check/{uuid4().hex}", b"planq"
        await self.put(location, body)
        found = await self.get(location)
        await self.delete([location])
        if found != body:
            raise StorageUnavailable("the storage of PLANQ_PAYLOADS returned other bytes than were written")


def open_objects(url: str) -> ObjectStore | None:
    """Return the storage that PLANQ_PAYLOADS names, None where it names none: then PostgreSQL holds everything."""
    return ObjectStore(url) if url else None


def _s3_options() -> dict[str, Any]:
    # Options given here replace those that obstore reads from the environment.
    is_http_allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
    client: ClientConfig = {"timeout": _REQUEST_SECONDS, "allow_http": is_http_allowed}
    return {"retry_config": _RETRY, "client_options": client}


def _unavailable(what: str, error: BaseException) -> StorageUnavailable:
    return StorageUnavailable(f"the storage of PLANQ_PAYLOADS {what}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]

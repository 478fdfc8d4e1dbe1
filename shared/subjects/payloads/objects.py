"""A folder or an S3-compatible bucket for large outputs.

Imported only if PLANQ_PAYLOADS names one. An object has a unique name and never changes; after `put` it survives a
power loss. `obstore` reaches buckets with the standard `AWS_…` variables; files are written here, because obstore
(0.12) does not sync them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from planq.shared.platform.errors import Misconfigured, StorageUnavailable

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

T = TypeVar("T")

_RETRY: RetryConfig = {"max_retries": 4, "retry_timeout": timedelta(seconds=20)}
"""obstore's three minutes exceed most steps' timeouts; the engine retries."""

_REQUEST_SECONDS = timedelta(seconds=60)
"""Timeout of a request; obstore's 30 s need 2 MB/s for the largest output."""


class ObjectStore(ABC):
    """Objects below one address; every method raises `StorageUnavailable`. `place` is the shown address."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @abstractmethod
    async def put(self, location: str, body: bytes) -> None:
        """Write an object durably; after an error it may exist, in part or whole."""

    @abstractmethod
    def stream(self, location: str, chunk_bytes: int) -> AsyncIterator[bytes]:
        """Yield an object's bytes in chunks of about this size; a missing one fails at once."""

    @abstractmethod
    async def remove(self, location: str) -> None:
        """Remove an object, if it exists."""

    async def delete(self, locations: Collection[str]) -> None:
        for location in locations:
            await self.remove(location)

    async def check(self) -> None:
        """Write, read and remove a small object."""
        location, body = f"check/{uuid4().hex}", b"planq"
        await self.put(location, body)
        found = b"".join([piece async for piece in self.stream(location, len(body))])
        await self.remove(location)
        if found != body:
            raise StorageUnavailable(f"{self._named} returned other bytes than were written", place=self.place)

    @property
    def _named(self) -> str:
        return f"the storage of PLANQ_PAYLOADS, {self.place},"

    def _unavailable(self, what: str, error: BaseException) -> StorageUnavailable:
        return StorageUnavailable(f"{self._named} {what}: {_first_line(error)}", place=self.place)


class FolderObjects(ObjectStore):
    """Files below a folder, which is made if missing; not in place of a lost mount."""

    def __init__(self, url: str) -> None:
        """Raises `Misconfigured` for an unusable address."""
        super().__init__(url)
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise Misconfigured(f"PLANQ_PAYLOADS: expected an absolute path as in file:///folder, found {url[:80]!r}")
        self._folder = Path(unquote(parts.path))
        self._kept: set[Path] = set()  # folders of this one that are on the disk for certain
        try:
            _make_folder(self._folder)
        except OSError as error:
            raise Misconfigured(f"PLANQ_PAYLOADS: {_first_line(error)}") from error

    async def put(self, location: str, body: bytes) -> None:
        """Write a file; it and its directory entry are synced."""
        await self._do("takes no objects", lambda: self._write(location, body))

    async def stream(self, location: str, chunk_bytes: int) -> AsyncIterator[bytes]:
        start = 0
        while chunk := await self._do(
            f"does not give the object {location}", partial(self._read, location, start, chunk_bytes)
        ):
            yield chunk
            start += len(chunk)

    async def remove(self, location: str) -> None:
        await self._do("removes no objects", lambda: (self._folder / location).unlink(missing_ok=True))

    def _read(self, location: str, start: int, length: int) -> bytes:
        # Opened for each piece: a reader that stops must not close what a thread still reads from.
        with (self._folder / location).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def _write(self, location: str, body: bytes) -> None:
        path = self._folder / location
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir()
            self._kept.discard(path.parent)
        if path.parent not in self._kept:  # its maker may not have forced it to the disk yet
            _sync_folder(self._folder)
            self._kept.add(path.parent)
        # Its only name: a file that a crash left half-written must be found by it.
        with path.open("xb", buffering=0) as file:
            left = memoryview(body)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        _sync_folder(path.parent)

    async def _do(self, what: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread: disks may be slow."""
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise self._unavailable(what, error) from error


class BucketObjects(ObjectStore):
    """Objects of a bucket, which is durable by itself."""

    def __init__(self, url: str) -> None:
        """Connects later; raises `Misconfigured` for an unusable address."""
        super().__init__(url)
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        # FileNotFoundError is how obstore reports an object that is not there.
        self._failures = (BaseError, OSError, ValueError)
        # These options replace those that obstore reads from the environment.
        is_http_allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
        client: ClientConfig = {"timeout": _REQUEST_SECONDS, "allow_http": is_http_allowed}
        try:
            self._store = from_url(url, retry_config=_RETRY, client_options=client)
        except (*self._failures, TypeError) as error:
            raise Misconfigured(f"PLANQ_PAYLOADS: {_first_line(error)}") from error

    async def put(self, location: str, body: bytes) -> None:
        try:
            # In one request: no listing would show the parts of an unfinished upload.
            await self._store.put_async(location, body, use_multipart=False)
        except self._failures as error:
            raise self._unavailable("takes no objects", error) from error

    async def stream(self, location: str, chunk_bytes: int) -> AsyncIterator[bytes]:
        try:
            found = await self._store.get_async(location)
            async for chunk in found.stream(min_chunk_size=chunk_bytes):
                yield bytes(chunk)
        except self._failures as error:
            raise self._unavailable(f"does not give the object {location}", error) from error

    async def remove(self, location: str) -> None:
        try:
            await self._store.delete_async(location)
        except FileNotFoundError:
            return
        except self._failures as error:
            raise self._unavailable("removes no objects", error) from error


def open_objects(url: str) -> ObjectStore | None:
    """Return the storage of PLANQ_PAYLOADS, None without one (PostgreSQL); raises `Misconfigured`."""
    if not url:
        return None
    kind = _KINDS.get(url.partition("://")[0])
    if kind is None:
        raise Misconfigured(f"PLANQ_PAYLOADS: expected file:///folder or s3://bucket/prefix, found {url[:80]!r}")
    try:
        return kind(url)
    except ValueError as error:  # no URL at all
        raise Misconfigured(f"PLANQ_PAYLOADS: {_first_line(error)}") from error


_KINDS: dict[str, Callable[[str], ObjectStore]] = {"file": FolderObjects, "s3": BucketObjects}


def _make_folder(folder: Path) -> None:
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync_folder(made.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]

"""Response bodies from outside: decompressed here, and bounded in bytes, time and rate.

A small compressed body can expand to gigabytes, and a server may never end. So a body is decompressed here in pieces,
within a limit; the HTTP client would decompress each chunk as a whole.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from math import inf

import httpx2

from planq.shared.platform.errors import TooSlow, capped
from planq.shared.platform.logs import redaction

CODINGS = ("gzip", "x-gzip", "deflate")
"""Content codings (RFC 9110 §8.4.1) that are decoded. For others there is no decoder that stops at a limit."""

ACCEPT_ENCODING = "gzip, deflate"

_PIECE_BYTES = 64 * 1024
_WORDS_BYTES = 2_000
_WORDS_CHARS = 200
_WORDS_SECONDS = 1.0


class BodyRefused(httpx2.StreamError):
    """The body is too long, damaged or badly encoded; a `StreamError`, which SDKs handle."""


class BodyTooLarge(BodyRefused):
    """The decompressed body is longer than the limit; the part before was within it."""


class BodyDamaged(BodyRefused):
    """A compressed body cannot be decompressed."""


class BodyCutOff(BodyDamaged):
    """A compressed body ended early; the part before is readable."""


@dataclass(frozen=True, slots=True)
class LeastRate:
    """Minimum rate of a body: `seconds` of silence are free, and each byte extends the deadline."""

    bytes_per_second: float = 1_000.0
    seconds: float = 10.0

    def after(self, until: float, now: float, received: int) -> float:
        """Return the next deadline after `received` bytes at `now`, when the previous deadline was `until`."""
        return min(now + self.seconds, until + received / self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class AnswerBounds:
    """Bounds of one response: `most_bytes` of decompressed body, `seconds` from the request to its end.

    With `open_streams` an event stream has neither bound: it lasts as long as its session, and its reader bounds each
    event. With `least_rate` None a body may be as slow as `seconds` allow.
    """

    most_bytes: int
    seconds: float
    least_rate: LeastRate | None = None
    open_streams: bool = False


class BoundedBody(httpx2.AsyncByteStream):
    """A response body within bounds; `on_close` is called once. Read a second time it is empty."""

    def __init__(self, response: httpx2.Response, bounds: AnswerBounds, until: float, source: str) -> None:
        """Replace the body of a response by this decompressed one.

        `until` is its deadline on the loop's clock; `source` names the other side in messages.
        """
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._inner = response.stream
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_open = bounds.open_streams and kind == "text/event-stream"
        self._left = inf if is_open else bounds.most_bytes
        self._until = inf if is_open else until
        self._bounds = bounds
        self._source = source
        self._coding = response.headers.pop("content-encoding", "identity").strip().lower()
        self._pieces = self._unpacked()
        self.on_close: Callable[[], None] | None = None
        if self._coding not in ("", "identity"):
            response.headers.pop("content-length", None)  # that of the packed body
        response.stream = self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            on_close, self.on_close = self.on_close, None
            if on_close is not None:
                on_close()

    async def _unpacked(self) -> AsyncIterator[bytes]:
        if self._coding not in ("", "identity", *CODINGS):
            raise BodyRefused(
                f"the body has the content coding {self._coding[:40]!r}; expected none, {' or '.join(CODINGS[::2])}"
            )
        is_packed = self._coding in CODINGS
        # Gzip or zlib, detected from the first bytes.
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if is_packed else None
        is_begun = False
        async for chunk in self._received():
            is_begun = True
            for piece in (chunk,) if unpacker is None else self._pieces_of(unpacker, chunk):
                if len(piece) > self._left:
                    yield piece[: int(self._left)]
                    most = self._bounds.most_bytes
                    raise BodyTooLarge(f"expected a body of at most {most} bytes, found a longer one")
                self._left -= len(piece)
                yield piece
        if unpacker is not None and is_begun and not unpacker.eof:
            raise BodyCutOff(f"the body stopped in the middle of its {self._coding} data")

    def _pieces_of(self, unpacker: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
        packed = chunk
        try:
            while packed and not unpacker.eof:
                yield unpacker.decompress(packed, _PIECE_BYTES)
                packed = unpacker.unconsumed_tail
        except zlib.error as error:
            raise BodyDamaged(f"the body is no valid {self._coding} ({error})") from error

    async def _received(self) -> AsyncIterator[bytes]:
        clock, rate = asyncio.get_running_loop().time, self._bounds.least_rate
        chunks, since, received = aiter(self._inner), clock(), 0
        owed = inf if rate is None else since + rate.seconds
        while True:
            until = min(owed, self._until)
            try:
                async with asyncio.timeout_at(None if until == inf else until):
                    chunk = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if rate is not None and owed < self._until:
                    raise self._too_slow(rate, received, clock() - since) from None
                raise out_of_time(self._source, self._bounds) from None
            now, received = clock(), received + len(chunk)
            if rate is not None:
                owed = rate.after(owed, now, len(chunk))
                if owed == now + rate.seconds:  # nothing is owed: what counts begins here
                    since, received = now, 0
            yield chunk

    def _too_slow(self, rate: LeastRate, received: int, seconds: float) -> TooSlow:
        return TooSlow(
            f"{self._source} sends too slowly: expected at least {rate.bytes_per_second:g} bytes a second over "
            f"{rate.seconds:g} s, found {received} bytes in the last {seconds:.1f} s",
            bytes_received=received,
            seconds=round(seconds, 1),
        )


def out_of_time(source: str, bounds: AnswerBounds) -> httpx2.ReadTimeout:
    return httpx2.ReadTimeout(f"{source} did not answer in full within {bounds.seconds:g} s")


async def read_cut(response: httpx2.Response) -> tuple[bytes, bool]:
    """Return the body up to its bound, and whether it was cut; raise `BodyRefused` for a damaged one."""
    body = bytearray()
    try:
        async for piece in response.aiter_raw():
            body += piece
    except (BodyTooLarge, BodyCutOff):
        return bytes(body), True
    return bytes(body), False


async def words_of(response: httpx2.Response) -> str:
    """Return the first 2 kB of a response as one line for an error, without secrets; never raise."""
    said = bytearray()
    try:
        async with asyncio.timeout(_WORDS_SECONDS):
            async for piece in response.aiter_raw():
                said += piece
                if len(said) >= _WORDS_BYTES:
                    break
    except (TimeoutError, httpx2.HTTPError, httpx2.StreamError, TooSlow):
        pass
    text = " ".join(bytes(said[:_WORDS_BYTES]).decode("utf-8", errors="replace").split())
    return capped(redaction("".join(char for char in text if char.isprintable())), _WORDS_CHARS)

"""HTTP servers that misbehave, a CONNECT proxy, and a private certificate authority: all on the test's own loop."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Serve = Callable[[asyncio.StreamReader, "CountedWriter"], Awaitable[None]]

MB = 1_000_000


@dataclass(slots=True)
class CountedWriter:
    """Counts what it sends."""

    inner: asyncio.StreamWriter
    sent: int = 0

    async def send(self, data: bytes) -> None:
        self.inner.write(data)
        self.sent += len(data)
        await self.inner.drain()


@dataclass(slots=True)
class Server:
    """A running server; `sent` has the bytes of each connection, `heads` the requests."""

    port: int = 0
    sent: list[int] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)


async def head_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))
    return head


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        with suppress(OSError):
            await writer.wait_closed()
    finally:
        writer.transport.abort()


@asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Run a server that reads one request of each connection, and answers as `serve` does."""
    server, tasks = Server(), set[asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        counted = CountedWriter(writer)
        try:
            server.heads.append(await head_of(reader))
            await serve(reader, counted)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has seen enough
        finally:
            server.sent.append(counted.sent)
            await closed(writer)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@cache
def bomb(megabytes: int = 200) -> bytes:
    """Return a gzip body of a few hundred kB that unpacks to so many megabytes."""
    return gzip.compress(b" " * (megabytes * MB), 9)


def answer(status: str, body: bytes, *headers: str, kind: str = "application/json") -> Serve:
    """Serve one whole answer."""

    async def serve(reader: asyncio.StreamReader, writer: CountedWriter) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
        await writer.send("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)

    return serve


async def _closing(reader: asyncio.StreamReader, writer: CountedWriter) -> None:
    """Close at once."""


async def _dripping(reader: asyncio.StreamReader, writer: CountedWriter) -> None:
    await writer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        await writer.send(b" ")
        await asyncio.sleep(1)


async def _dripping_head(reader: asyncio.StreamReader, writer: CountedWriter) -> None:
    await writer.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        await writer.send(b"x")
        await asyncio.sleep(0.05)


async def _endless(reader: asyncio.StreamReader, writer: CountedWriter) -> None:
    await writer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n[")
    for _ in range(1_000):
        await writer.send(b" " * MB)


async def _one_chunk(reader: asyncio.StreamReader, writer: CountedWriter) -> None:
    await writer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    await writer.send(b"%x\r\n" % (10 * MB) + b" " * (10 * MB) + b"\r\n0\r\n\r\n")


async def _long_head(reader: asyncio.StreamReader, writer: CountedWriter) -> None:
    await writer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Long: ")
    for _ in range(10):
        await writer.send(b"x" * MB)
    await writer.send(b"\r\nContent-Length: 2\r\n\r\n{}")


MISBEHAVIOURS: dict[str, Serve] = {
    "says HTML": answer("200 OK", b"<h1>Log in first</h1>", kind="text/html"),
    "refuses in HTML": answer("502 Bad Gateway", b"<h1>the back end is asleep</h1>", kind="text/html"),
    "closes at once": _closing,
    "drips a body": _dripping,
    "drips a head": _dripping_head,
    "sends 1 GB": _endless,
    "one chunk of 10 MB": _one_chunk,
    "invalid UTF-8": answer("200 OK", b'{"text": "\xff\xfe\xfa"}'),
    "invalid UTF-8 in a refusal": answer("500 Internal Server Error", b"\xff\xfe asleep\x00\x1b[31m"),
    "another content type": answer("200 OK", b"\x00" * 1_000, kind="image/png"),
    "gzip bomb": lambda reader, writer: answer("200 OK", bomb(), "Content-Encoding: gzip")(reader, writer),
    "gzip bomb in a refusal": lambda reader, writer: answer(
        "500 Internal Server Error", bomb(), "Content-Encoding: gzip"
    )(reader, writer),
    "damaged gzip": answer("200 OK", b"\x1f\x8b\x08" + b"x" * 100, "Content-Encoding: gzip"),
    "br": answer("200 OK", b"x" * 1_000, "Content-Encoding: br"),
    "zstd": answer("200 OK", b"x" * 1_000, "Content-Encoding: zstd"),
    "redirects for ever": answer("307 Temporary Redirect", b"", "Location: /again"),
    "a head of 10 MB": _long_head,
}


@dataclass(slots=True)
class Proxy:
    """A CONNECT proxy on `port`; `asked` has the targets of its requests, `routes` where a name leads."""

    port: int
    routes: dict[str, int] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@asynccontextmanager
async def proxying(*, refuses: str = "") -> AsyncIterator[Proxy]:
    """Run a proxy that tunnels `CONNECT` to this machine's ports; `refuses` is the status line that refuses all."""
    tasks = set[asyncio.Task[None]]()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        proxy.asked.append(f"{method} {target}")
        if refuses:
            writer.write(f"HTTP/1.1 {refuses}\r\nContent-Length: 0\r\n\r\n".encode())
            await closed(writer)
            return
        name = target if method == "CONNECT" else target.split("/")[2]
        there, back = await asyncio.open_connection("127.0.0.1", proxy.routes[name])
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            back.write(head)
        try:
            await asyncio.gather(pump(reader, back), pump(there, writer))
        finally:
            await closed(back)
            await closed(writer)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    proxy = Proxy(listening.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def private_authority(folder: Path, *names: str) -> tuple[Path, ssl.SSLContext]:
    """Make an authority and a server's certificate for `names`; return the authority's file, and the server's TLS."""
    now, day = datetime.now(UTC), timedelta(days=1)

    def certificate(
        subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        def name(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        return (
            x509.CertificateBuilder(name(issuer), name(subject), key.public_key(), x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
        )

    root, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = (
        certificate("a private authority", "a private authority", root, root)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(root, hashes.SHA256())
    )
    alternatives: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name) for name in names
    ]
    served = (
        certificate("a server", "a private authority", own, root)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(root, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    ca_file, chain = folder / "authority.pem", folder / "server.pem"
    ca_file.write_bytes(authority.public_bytes(pem))
    plain = serialization.NoEncryption()
    chain.write_bytes(own.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + served.public_bytes(pem))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    return ca_file, context

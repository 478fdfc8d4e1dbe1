"""Which addresses the guard lets through, before any connection is made."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import httpx2
import pytest

from planq.shared.platform.addresses import BLOCKS, why_refused
from planq.shared.platform.errors import InvalidArguments, PolicyDenied, Transient
from planq.worker.egress import (
    AnswerBounds,
    Egress,
    GuardedTransport,
    OwnAddresses,
    Proxies,
    Resolver,
    resolve_with_system,
    retry_after,
    tls_of,
)
from planq.worker.egress.wire import Wire

PUBLIC = [
    "93.184.216.34",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.128.0.0",
    "172.32.0.0",
    "192.0.1.0",
    "192.31.196.1",
    "198.20.0.0",
    "223.255.255.255",
    "2000::",
    "2001:200::1",
    "2606:2800:220:1::1",
    "2620:4f:8000::1",
    "3ffe:ffff::1",
    "::ffff:8.8.8.8",
    "2002:808:808::1",
    "64:ff9b::8.8.8.8",
]

REFUSED = [
    "127.0.0.1",
    "127.8.9.10",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.5.5",
    "192.168.1.1",
    "100.64.0.1",
    "100.100.100.200",
    "169.254.169.254",
    "192.0.0.192",
    "168.63.129.16",
    "198.18.0.1",
    "192.0.2.7",
    "224.0.0.251",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.1.2.3",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "fe80::1",
    "fe80::1%2",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:a9fe:a9fe::",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2001:0:4136:e378:8000:63bf:f5ff:fffe",
    "192.0.0.9",
    "192.88.99.2",
    "::8.8.8.8",
    "::ffff:0:8.8.8.8",
    "100::1",
    "100:0:0:1::1",
    "2001:1::1",
    "2001:20::1",
    "3fff::1",
    "3fff:fff:ffff::1",
    "4000::1",
    "5f00::1",
    "fe00::1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_pass(address: str) -> None:
    assert why_refused(ipaddress.ip_address(address)) is None


@pytest.mark.parametrize("address", REFUSED)
def test_other_addresses_are_refused(address: str) -> None:
    assert why_refused(ipaddress.ip_address(address)) is not None


def test_both_ends_of_every_block_are_refused_with_its_reason() -> None:
    for reason, blocks in BLOCKS.items():
        for network in map(ipaddress.ip_network, blocks):
            assert {why_refused(network[0]), why_refused(network[-1])} == {reason}, network


def test_what_the_standard_library_thinks_of_an_address_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(address: object) -> bool:
        raise AssertionError("this changes between the releases of Python")

    lists = [name for name in dir(ipaddress.IPv6Address) if name.startswith("is_")]
    for kind in (ipaddress.IPv4Address, ipaddress.IPv6Address):
        for name in lists:
            monkeypatch.setattr(kind, name, property(asked), raising=False)

    assert [why_refused(ipaddress.ip_address(address)) for address in PUBLIC] == [None] * len(PUBLIC)
    assert None not in [why_refused(ipaddress.ip_address(address)) for address in REFUSED]


def guard(resolve: Resolver, allow: frozenset[str] = frozenset(), tenant_id: str = "") -> GuardedTransport:
    return Egress(resolve=resolve).guard("http_fetch", AnswerBounds(1, 1.0), allow, tenant_id=tenant_id)


def transport(*addresses: str, allow: Sequence[str] = ()) -> GuardedTransport:
    """A guard whose every name resolves to `addresses`."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return guard(resolve, frozenset(allow))


@pytest.mark.parametrize("addresses", [["10.0.0.7"], ["93.184.216.34", "127.0.0.1"], ["::ffff:192.168.0.1"]])
def test_name_with_any_private_address_is_refused(addresses: list[str]) -> None:
    with pytest.raises(PolicyDenied, match=r"may not reach 'intranet\.example'"):
        asyncio.run(transport(*addresses).checked_addresses(httpx2.URL("http://intranet.example/")))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://0/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://127。0。0。1/",
        "http://①②⑦.0.0.1/",
    ],
)
def test_every_spelling_of_this_machine_is_refused_with_the_real_resolver(url: str) -> None:
    reached = guard(resolve_with_system)

    # A spelling that does not resolve at all, or is no URL, reaches nothing either.
    with pytest.raises((PolicyDenied, Transient, httpx2.InvalidURL)) as caught:
        asyncio.run(reached.checked_addresses(httpx2.URL(url)))

    if "。" not in url and "①" not in url and "0177" not in url and not url.endswith("./"):
        assert caught.type is PolicyDenied


@pytest.mark.parametrize("allowed", ["intranet.example", "INTRANET.example:8080", "intranet.example:8080"])
def test_allowed_host_may_be_private(allowed: str) -> None:
    found = asyncio.run(
        transport("10.0.0.7", allow=[allowed]).checked_addresses(httpx2.URL("http://Intranet.example:8080/"))
    )

    assert [str(address) for address in found] == ["10.0.0.7"]


def test_allowing_one_port_allows_no_other() -> None:
    reached = transport("10.0.0.7", allow=["intranet.example:8080"])

    with pytest.raises(PolicyDenied):
        asyncio.run(reached.checked_addresses(httpx2.URL("http://intranet.example/")))


@pytest.mark.parametrize(
    "url", ["ftp://example.org/", "file:///etc/passwd", "gopher://example.org/", "//example.org"]
)
def test_other_schemes_are_refused(url: str) -> None:
    with pytest.raises(InvalidArguments, match="http and https"):
        asyncio.run(transport("93.184.216.34").checked_addresses(httpx2.URL(url)))


def test_name_without_address_is_a_passing_fault() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    with pytest.raises(Transient, match="does not resolve"):
        asyncio.run(guard(resolve).checked_addresses(httpx2.URL("http://gone.example/")))


def test_the_certificate_authorities_are_read_once_for_all_requests() -> None:
    assert Egress().tls is Egress.read(None, "", {}).tls


@pytest.mark.parametrize(
    ("wish", "wait"),
    [
        ("7", timedelta(seconds=7)),
        ("86400", timedelta(days=1)),
        ("86401", timedelta(days=1)),
        ("9" * 4000, timedelta(days=1)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", timedelta(days=1)),
        ("Mon, 23 Nov 2026 12:00:09 GMT", timedelta(seconds=9)),
        ("Mon, 23 Nov 2026 11:00:00 GMT", timedelta()),
        ("soon", None),
        ("-1", None),
        ("", None),
    ],
)
def test_a_wait_that_is_asked_for_is_a_day_at_most(wish: str, wait: timedelta | None) -> None:
    response = httpx2.Response(429, headers={"Retry-After": wish})

    assert retry_after(response, datetime(2026, 11, 23, 12, tzinfo=UTC)) == wait


class Interface(NamedTuple):
    """As psutil tells of an address."""

    address: str


def test_this_machines_own_public_addresses_are_refused_also_when_they_change() -> None:
    now, has = [0.0], {"lo": [Interface("127.0.0.1")], "eth0": [Interface("8.8.4.4"), Interface("02:42:ac:11:00:02")]}
    own = OwnAddresses(lambda: has, lambda: now[0])

    async def reach(host: str, *found: str) -> None:
        async def resolve(_host: str, _port: int) -> Sequence[str]:
            return found

        wire = Wire(tls_of(None), Proxies(), AnswerBounds(1, 1.0), limits=httpx2.Limits())
        transport = GuardedTransport(wire, resolve, own=own)
        await transport.checked_addresses(httpx2.URL(f"http://{host}/"))
        await transport.aclose()

    for address in ("8.8.4.4", "::ffff:8.8.4.4", "64:ff9b::8.8.4.4"):
        with pytest.raises(PolicyDenied):
            asyncio.run(reach("own.example", address))
    asyncio.run(reach("others.example", "8.8.8.8"))
    has["eth0"] = [Interface("2606:2800:220:1::1%eth0"), Interface("8.8.8.8")]
    now[0] = 2.0
    with pytest.raises(PolicyDenied):
        asyncio.run(reach("others.example", "8.8.8.8"))
    asyncio.run(reach("own.example", "8.8.4.4"))


def test_the_interfaces_of_this_machine_are_known() -> None:
    assert ipaddress.ip_address("127.0.0.1") in OwnAddresses()


def test_a_refusal_does_not_tell_the_address_behind_a_name(caplog: pytest.LogCaptureFixture) -> None:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return ["10.1.2.3"]

    transport = guard(resolve, tenant_id="acme")
    with pytest.raises(PolicyDenied) as refused:
        asyncio.run(transport.checked_addresses(httpx2.URL("http://inside.example/")))

    assert "10.1.2.3" not in refused.value.message
    assert "private" not in refused.value.message
    (record,) = [one for one in caplog.records if one.message == "egress_refused"]
    assert (vars(record)["host"], vars(record)["address"]) == ("inside.example", "10.1.2.3")

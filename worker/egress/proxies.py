"""Which requests go through the operator's proxy (`PLANQ_EGRESS_PROXY`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from planq.shared.platform.errors import Misconfigured
from planq.shared.platform.redact import without_password

FROM_ENVIRONMENT = "environment"
_SETTING = "PLANQ_EGRESS_PROXY"


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxy of each scheme, and the hosts that are reached directly (entries of `NO_PROXY`)."""

    by_scheme: Mapping[str, str] = field(default_factory=dict, repr=False)
    direct: tuple[str, ...] = ()

    def of(self, scheme: str, host: str, port: int) -> str | None:
        """Return the URL of the proxy for a request, None for a direct one, as to loopback addresses."""
        proxy = self.by_scheme.get(scheme)
        if proxy is None or _is_loopback(host) or any(_covers(entry, host, port) for entry in self.direct):
            return None
        return proxy


def read_proxies(setting: str, environment: Mapping[str, str]) -> Proxies:
    """Return the proxies of the setting: none, those of the environment, or one URL for all requests.

    `NO_PROXY` of `environment` applies in both cases. Raises `Misconfigured` for another scheme than `http:

    ` or `https:

    `.
    """
    if not setting:
        return Proxies()
    direct = tuple(part.strip().lower() for part in _variable(environment, "no_proxy").split(",") if part.strip())
    if setting != FROM_ENVIRONMENT:
        _check(setting, _SETTING)
        return Proxies({"http": setting, "https": setting}, direct)
    found = {}
    for scheme in ("http", "https"):
        for name in (f"{scheme}_proxy", "all_proxy"):
            if url := _variable(environment, name):
                found[scheme] = url if "://" in url else f"http://{url}"
                _check(found[scheme], name.upper())
                break
    return Proxies(found, direct)


def _variable(environment: Mapping[str, str], name: str) -> str:
    return (environment.get(name) or environment.get(name.upper()) or "").strip()


def _check(url: str, name: str) -> None:
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        also = f" or `{FROM_ENVIRONMENT}`" if name == _SETTING else ""
        raise Misconfigured(
            f"{name}: expected http://[user:password@]host:port{also}, found {without_password(url)!r}"
        )


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _covers(entry: str, host: str, port: int) -> bool:
    """Return whether a `NO_PROXY` entry matches: `*`, a name with its subdomains, an address or a network."""
    if entry == "*":
        return True
    address = _address(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            pass
    name, colon, its_port = entry.rpartition(":")
    if colon and its_port.isdigit() and name.count(":") == 0:
        if int(its_port) != port:
            return False
        entry = name
    name = entry.removeprefix("*").removeprefix(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))

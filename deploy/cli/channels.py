"""`planq channels`: which channels of a tenant have their replies sent, and where; it speaks to the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from planq.api.cli.connection import AsJson, located_settings
from planq.api.cli.console import as_line, print_result, print_rows
from planq.api.cli.outcome import reported
from planq.deploy.cli.database import with_database
from planq.deploy.cli.tenants import TenantId
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.platform.errors import InvalidRequest, capped

if TYPE_CHECKING:
    from planq.shared.platform.database import Database
    from planq.shared.subjects.channels.store import ChannelStore, StoredChannel

T = TypeVar("T")

Name = Annotated[str, typer.Argument(metavar="CHANNEL", help="A channel of the tenant's configuration.")]


def connect_channel(
    tenant_id: TenantId,
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where what conversations say is posted, signed.")],
    as_json: AsJson = False,
) -> None:
    """Post what is said on a channel to an address. docs/channels.md says what is posted, and how to answer."""
    from planq.shared.subjects.channels.store import ChannelStore
    from planq.shared.subjects.webhooks.rules import checked_url
    from planq.shared.subjects.webhooks.signing import SigningSecrets

    async def connect(database: Database) -> None:
        await check_channel(database, tenant_id, name)
        channels, masters = ChannelStore(database), settings.master_keys
        known = await channels.list(tenant_id)
        if masters and not any(one.kind is ChannelKind.WEBHOOK for one in known):
            # Before somebody posts by the secret of callbacks, as systems do that were connected long ago.
            await SigningSecrets(database, masters).begin_inbound(tenant_id, keeps_callbacks=False)
        await channels.connect(tenant_id, name, ChannelKind.WEBHOOK, {"url": url})

    with reported(as_json=as_json):
        settings = located_settings()
        checked_url(url, "URL", settings.webhook_hosts)
        with_database(connect)
    said = f"what is said on the channel {name} of the tenant {tenant_id} is posted to {url}"
    print_result({"tenant_id": tenant_id, "name": name, "url": url}, said, as_json=as_json)


def list_channels(tenant_id: TenantId, as_json: AsJson = False) -> None:
    """List the channels of a tenant that are sent to, and what keeps planq from doing so."""
    with reported(as_json=as_json):
        found = with_channels(lambda channels: channels.list(tenant_id))
    print_rows({"items": [one.to_json() for one in found]}, [_row(one) for one in found], as_json=as_json)


def _row(one: StoredChannel) -> list[str]:
    place = as_line(str(one.config.get("url") or one.config.get("username") or ""), 60)
    return [one.name, one.kind, place, as_line(one.problem or "", 100)]


def disconnect_channel(tenant_id: TenantId, name: Name, as_json: AsJson = False) -> None:
    """Send nothing to a channel any more; what waits for it fails."""
    with reported(as_json=as_json):
        with_channels(lambda channels: channels.disconnect(tenant_id, name))
    said = f"nothing is sent to the channel {name} of the tenant {tenant_id} any more"
    print_result({"tenant_id": tenant_id, "name": name}, said, as_json=as_json)


async def check_channel(database: Database, tenant_id: str, name: str) -> None:
    """Raise `NotFound` for a tenant that is not there, and `InvalidRequest` for a channel that it does not have."""
    from planq.shared.subjects.tenants.config import read_tenant_config
    from planq.shared.subjects.tenants.directory import TenantStore

    known = read_tenant_config((await TenantStore(database).get(tenant_id)).config).channels
    if name not in known:
        raise InvalidRequest(
            f"CHANNEL: expected one of {', '.join(known)}, found {capped(name, 63)!r}; planq tenants set {tenant_id} "
            "'channels=[…]' names others"
        )


def with_channels(use: Callable[[ChannelStore], Awaitable[T]]) -> T:
    """Run `use` on the database's channels; raises as `with_database` does."""
    from planq.shared.subjects.channels.store import ChannelStore

    return with_database(lambda database: use(ChannelStore(database)))

"""`planq telegram`: a tenant's bot, known to Telegram by a webhook, or asked for what is new; on the database itself.

The token of the bot is the tenant's secret `telegram_token`. No command takes it as an argument, or shows it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlsplit

import typer

from planq.api.cli.connection import AsJson, Url, default_url, located_settings
from planq.api.cli.console import as_line, err, out, print_result
from planq.api.cli.outcome import INTERRUPTED, end, reported
from planq.deploy.cli.channels import check_channel
from planq.deploy.cli.database import with_database
from planq.deploy.cli.tenants import TenantId
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.platform.errors import (
    AuthFailed,
    Conflict,
    DatabaseUnavailable,
    InvalidRequest,
    PlanqError,
    Transient,
    capped,
)
from planq.shared.subjects.channels.telegram import BOT_API, BOT_SECRET, PROOF_HEADER, UPDATE_KINDS

if TYPE_CHECKING:
    from planq.shared.platform.database import Database
    from planq.shared.subjects.channels.store import ChannelStore
    from planq.worker.channels.telegram import BotApi

T = TypeVar("T")

_CHANNEL = ChannelKind.TELEGRAM.value
_LEASE = timedelta(seconds=90)
_POLL_SECONDS = 20
_PAUSE_SECONDS = 2.0
_TIMEOUT = timedelta(seconds=20)
_STATEMENT_SECONDS = 10.0
_GOODBYE_SECONDS = 2.0
"""Maximum wait for an unreachable database when polling ends; the lease expires by itself."""


class Groups(StrEnum):
    """The messages in groups that a bot handles."""

    MENTIONS = "mentions"
    ALL = "all"


_Groups = Annotated[Groups, typer.Option(help="In groups: messages that mention it or reply to it, or all.")]


def set_webhook(
    tenant_id: TenantId,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the API is reached from outside, https://…")],
    groups: _Groups = Groups.MENTIONS,
    as_json: AsJson = False,
) -> None:
    """Let Telegram post what is said to a tenant's bot to URL/webhooks/telegram/TENANT.

    The token is read from the tenant's secrets: `planq secrets set TENANT telegram_token`.
    """

    async def connect(bot: TenantBot) -> str:
        address = f"{_checked(url).rstrip('/')}/webhooks/telegram/{tenant_id}"
        identity, proof = await bot.identity(), secrets.token_urlsafe(32)
        given = {"url": address, "secret_token": proof, "allowed_updates": list(UPDATE_KINDS)}
        # Telegram first: what it posts before the channel is known is refused, and posted again.
        await bot.call("setWebhook", given)
        await bot.connect(identity, groups, proof)
        return f"@{identity['username']} posts to {address}"

    _answer(tenant_id, connect, as_json=as_json)


def show_webhook(tenant_id: TenantId, as_json: AsJson = False) -> None:
    """Show a tenant's bot, where Telegram posts to, and what kept it from that or planq from sending."""

    async def look(bot: TenantBot) -> str:
        identity, webhook = await bot.identity(), await bot.call("getWebhookInfo", {})
        known = await bot.channels.find(tenant_id, _CHANNEL)
        lines = [
            f"bot      @{identity['username']}",
            f"webhook  {webhook.get('url') or 'none'}, {webhook.get('pending_update_count', 0)} updates wait",
            f"channel  {'not connected' if known is None else known.problem or 'connected'}",
        ]
        if said := webhook.get("last_error_message"):
            lines.append(f"Telegram says  {said}")
        return "\n".join(as_line(line, 300) for line in lines)

    _answer(tenant_id, look, as_json=as_json)


def delete_webhook(tenant_id: TenantId, as_json: AsJson = False) -> None:
    """Let Telegram post no more, and send nothing to the bot's chats any more."""

    async def remove(bot: TenantBot) -> str:
        await bot.call("deleteWebhook", {})
        await bot.channels.disconnect(tenant_id, _CHANNEL)
        return f"the bot of the tenant {tenant_id} is disconnected"

    _answer(tenant_id, remove, as_json=as_json)


def poll_updates(tenant_id: TenantId, groups: _Groups = Groups.MENTIONS, url: Url = None) -> None:
    """Ask Telegram for what is said to a tenant's bot, until Ctrl-C or SIGTERM, and hand it to the API: for machines
    without an address that Telegram reaches.

    One process at a time does so for a bot. A webhook that was set is deleted.
    """
    ended: list[signal.Signals] = []

    async def run(bot: TenantBot) -> str:
        ending, number = await until_signal(bot.poll(url or default_url(), groups))
        ended.extend([] if number is None else [number])
        return ending or "ended; the bot answers no more"

    _answer(tenant_id, run, as_json=False)
    if ended == [signal.SIGINT]:
        end(INTERRUPTED)


@dataclass(frozen=True, slots=True)
class TenantBot:
    """A tenant's bot, by its token, and the channels of the database."""

    tenant_id: str
    token: str
    api: BotApi
    channels: ChannelStore

    async def call(self, method: str, given: dict[str, Any], *, wait: float = 0.0) -> Any:
        """Return the result of a method; raises `AuthFailed` for the token, `Transient` for what may go by itself."""
        answer = await self.api.call(self.token, method, given, wait=wait)
        if answer.is_taken:
            return answer.document.get("result")
        if answer.status in (401, 404):
            raise AuthFailed(f"Telegram refuses the token: store the present one as the secret {BOT_SECRET}")
        message = f"Telegram answered {method} with {answer.status or 'nothing'}: {answer.description or 'no reason'}"
        if answer.status is None or answer.status >= 500 or answer.status in (409, 429):
            raise Transient(message)
        raise InvalidRequest(message)

    async def identity(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.call("getMe", {})
        return found

    async def connect(self, identity: dict[str, Any], groups: Groups, proof: str) -> None:
        """Send over the bot from now on, and take what comes with the secret token `proof`."""
        config = {"bot_id": identity["id"], "username": identity["username"], "groups": groups.value}
        digest = hashlib.sha256(proof.encode()).hexdigest()
        await self.channels.connect(self.tenant_id, _CHANNEL, ChannelKind.TELEGRAM, config, digest)

    async def poll(self, url: str, groups: Groups) -> str:
        """Post updates to the API; raise `Conflict` if another process does so.

        While the database is away it waits, as it does for the API and for Telegram.
        """
        import httpx

        from planq.shared.kernel.new_ids import new_id

        identity, proof, me = await self.identity(), secrets.token_urlsafe(32), new_id()
        if await self.channels.find(self.tenant_id, _CHANNEL) is None:
            await self.connect(identity, groups, proof)
        if not await self._hold(me, _LEASE):
            raise Conflict("another process asks for the updates of this bot; end it first, or wait for 90 s")
        try:
            await self.connect(identity, groups, proof)
            await self.call("deleteWebhook", {})
            out.print(f"@{identity['username']} answers while this runs; Ctrl-C ends it")
            headers = {PROOF_HEADER: proof}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
                offset = 0
                while True:
                    try:
                        if not await self._hold(me, _LEASE):
                            return "another process asks for the updates of this bot now"
                    except DatabaseUnavailable as error:
                        await _pause(error.message)
                        continue
                    offset = await self._round(http, offset)
        finally:
            with suppress(DatabaseUnavailable, TimeoutError):
                async with asyncio.timeout(_GOODBYE_SECONDS):
                    await self._hold(me, timedelta())

    async def _hold(self, me: Any, lease: timedelta) -> bool:
        return await self.channels.hold_polling(self.tenant_id, _CHANNEL, me, lease)

    async def _round(self, http: Any, offset: int) -> int:
        given = {"offset": offset, "timeout": _POLL_SECONDS, "allowed_updates": list(UPDATE_KINDS)}
        try:
            updates = await self.call("getUpdates", given, wait=_POLL_SECONDS)
        except Transient as error:
            await _pause(error.message)
            return offset
        for update in updates:
            if not await self._hand_on(http, update):
                await asyncio.sleep(_PAUSE_SECONDS)
                return offset
            offset = max(offset, update["update_id"] + 1)
        return offset

    async def _hand_on(self, http: Any, update: dict[str, Any]) -> bool:
        """Post an update to the API, and call what it wants called; False where it has to be posted again."""
        import httpx

        try:
            answer = await http.post(f"/webhooks/telegram/{self.tenant_id}", json=update)
        except httpx.HTTPError as error:
            err.print(f"planq: the API gives no answer ({type(error).__name__})", style="red")
            return False
        if answer.status_code >= 500 or answer.status_code == 403:  # by 403 it does not know the new secret token yet
            err.print(f"planq: the API answered {answer.status_code}", style="red")
            return False
        wanted = answer.json() if answer.status_code == 200 else {}
        if method := wanted.pop("method", None):
            with suppress(PlanqError):  # best effort
                await self.call(method, wanted)
        return True


async def until_signal(work: Coroutine[Any, Any, T], *, again: float = 3.0) -> tuple[T | None, signal.Signals | None]:
    """Return what `work` does, or the first SIGINT or SIGTERM that came meanwhile, after which it has ended.

    It is cancelled once more after `again` seconds, and so on: a connection that is made at the moment of a cancel
    may lose it (anyio takes it for its own). Raises what `work` raises.
    """
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    numbers: list[signal.Signals] = []

    def note(number: signal.Signals) -> None:
        numbers.append(number)
        came.set()

    heard = (signal.SIGINT, signal.SIGTERM)
    for number in heard:
        loop.add_signal_handler(number, note, number)
    task, signalled = asyncio.create_task(work), asyncio.create_task(came.wait())
    try:
        await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        signalled.cancel()
        for number in heard:
            loop.remove_signal_handler(number)  # a second one is not waited with
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=again)
    return None if task.cancelled() else task.result(), numbers[0] if numbers else None


async def _pause(message: str) -> None:
    err.print(f"planq: {as_line(message, 300)}", style="red")
    await asyncio.sleep(_PAUSE_SECONDS)


def _answer(tenant_id: str, use: Callable[[TenantBot], Awaitable[str]], *, as_json: bool) -> None:
    async def run(database: Database) -> str:
        from planq.shared.subjects.channels.store import ChannelStore
        from planq.shared.subjects.tenants.secrets import SecretStore
        from planq.worker.channels.telegram import BotApi
        from planq.worker.egress import Egress

        settings = located_settings()
        await check_channel(database, tenant_id, _CHANNEL)
        token = await SecretStore(database, settings.master_keys).get(tenant_id, BOT_SECRET)
        if token is None:
            raise InvalidRequest(f"the tenant has no bot: planq secrets set {tenant_id} {BOT_SECRET}")
        egress = Egress.read(settings.ca_file, settings.egress_proxy, os.environ)
        api = BotApi(settings.telegram_url or BOT_API, _TIMEOUT, egress)
        return await use(TenantBot(tenant_id, token, api, ChannelStore(database)))

    with reported(as_json=as_json):
        message = with_database(run, statement_seconds=_STATEMENT_SECONDS)
    print_result({"tenant_id": tenant_id, "message": message}, message, as_json=as_json)


def _checked(url: str) -> str:
    if urlsplit(url).scheme != "https":
        raise InvalidRequest(f"URL: expected https://…, as Telegram does, found {capped(url, 100)!r}")
    return url

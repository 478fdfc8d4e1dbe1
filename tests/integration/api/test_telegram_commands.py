"""`planq telegram` and `planq channels` on a real database, beside a real API and a local server of the Bot API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner, Result

from planq.deploy.cli.main import create_app
from planq.deploy.cli.telegram import Groups, TenantBot
from planq.shared.agentic.turns.channel_kinds import ChannelKind
from planq.shared.platform.database import Database
from planq.shared.platform.errors import Conflict, DatabaseUnavailable
from planq.shared.subjects.channels.store import ChannelStore
from planq.worker.channels.telegram import BotApi
from tests.integration.api.conftest import SECRET_KEY, Api, MakeApi
from tests.support.bot_api import TOKEN, BotServer, bot_server
from tests.support.updates import press, said
from tests.support.waiting import until

Planq = Callable[..., Result]


class InterruptedChannels(ChannelStore):
    """Loses the database once, when it `is_away`."""

    is_away = False

    async def hold_polling(self, tenant_id: str, name: str, holder: UUID, lease: timedelta) -> bool:
        if self.is_away:
            self.is_away = False
            raise DatabaseUnavailable("the database does not answer: OperationalError")
        return await super().hold_polling(tenant_id, name, holder, lease)


@pytest.fixture
def api(make_api: MakeApi) -> Api:
    """An API of this test alone."""
    api = make_api(secret_keys=SECRET_KEY)
    api.jobs.configure()
    return api


@pytest.fixture
def planq(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planq:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PLANQ_SECRET_KEYS", SECRET_KEY)
    monkeypatch.setenv("PLANQ_DATA", str(tmp_path / "no-data"))
    monkeypatch.setenv("PLANQ_WEBHOOK_ALLOW_HOSTS", "")

    def run(*arguments: str, stdin: str | None = None, server: BotServer | None = None) -> Result:
        monkeypatch.setenv("PLANQ_TELEGRAM_URL", server.url if server is not None else "http://127.0.0.1:9")
        return CliRunner().invoke(create_app(), list(arguments), input=stdin)

    return run


def test_a_webhook_is_set_shown_and_deleted_and_its_secret_token_lets_telegram_in(api: Api, planq: Planq) -> None:
    assert planq("secrets", "set", "default", "telegram_token", stdin=TOKEN).exit_code == 0
    with bot_server() as server:
        set_up = planq(
            "telegram", "set-webhook", "default", "https://planq.example/", "--groups", "all", server=server
        )
        address = "https://planq.example/webhooks/telegram/default"
        assert (set_up.exit_code, set_up.stdout.split()) == (0, ["@planq_bot", "posts", "to", address])
        (given,) = [given for method, given in server.calls if method == "setWebhook"]
        assert given["url"] == address
        assert given["allowed_updates"] == ["message", "edited_message", "callback_query"]
        proof = {"X-Telegram-Bot-Api-Secret-Token": given["secret_token"]}
        answer = api.http.post("/webhooks/telegram/default", json=said("hi all", chat=-5), headers=proof)
        assert (answer.status_code, answer.json()["method"]) == (200, "sendChatAction"), "it hears all in groups"

        shown = planq("telegram", "info", "default", server=server)
        assert "@planq_bot" in shown.stdout
        assert "connected" in shown.stdout
        listed = json.loads(planq("channels", "list", "default", "--json").stdout)["items"]
        assert [(one["name"], one["kind"], one["config"]["username"]) for one in listed] == [
            ("telegram", "telegram", "planq_bot")
        ]
        deleted = planq("telegram", "delete", "default", server=server)
        assert (deleted.exit_code, server.calls[-1][0]) == (0, "deleteWebhook")
        assert api.http.post("/webhooks/telegram", json={}, headers=proof).status_code == 403
        for result in (set_up, shown, deleted):
            assert TOKEN not in result.output


def test_what_cannot_be_done_is_told_without_the_token(api: Api, planq: Planq) -> None:
    def refused(*arguments: str, server: BotServer | None = None) -> str:
        result = planq(*arguments, server=server)
        assert result.exit_code != 0
        assert TOKEN not in result.output
        return " ".join(result.stderr.split())

    assert "planq secrets set default telegram_token" in refused("telegram", "info", "default")
    assert "there is no tenant 'nobody'" in refused("telegram", "info", "nobody")
    planq("secrets", "set", "default", "telegram_token", stdin=TOKEN)
    assert "could not be reached" in refused("telegram", "info", "default")
    with bot_server() as server:
        server.tokens.clear()
        assert "Telegram refuses the token" in refused("telegram", "info", "default", server=server)
        server.tokens.add(TOKEN)
        told = refused("telegram", "set-webhook", "default", "http://planq.example", server=server)
        assert "expected https://" in told
    assert "expected one of api, web, telegram" in refused(
        "channels", "connect", "default", "sms", "https://a.example"
    )
    assert "is a loopback address" in refused("channels", "connect", "default", "web", "http://127.0.0.1/")
    assert "sends to no channel" in refused("channels", "disconnect", "default", "web")
    assert planq("channels", "connect", "default", "web", "https://a.example/in").exit_code == 0
    assert "https://a.example/in" in planq("channels", "list", "default").stdout
    assert planq("channels", "disconnect", "default", "web").exit_code == 0


def test_who_polls_hands_updates_to_the_api_once_each_and_alone_and_waits_for_the_database(
    api: Api, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def play(server: BotServer) -> None:
        async with Database(database_url, max_connections=2) as database:
            channels = InterruptedChannels(database)

            def bot() -> TenantBot:
                return TenantBot("default", TOKEN, BotApi(server.url, timeout), channels)

            polling = asyncio.create_task(bot().poll(str(api.http.base_url), Groups.MENTIONS))

            def is_done() -> bool:
                presses = [method for method, _ in server.calls if method == "answerCallbackQuery"]
                return polling.done() or len(presses) == sum("callback_query" in one for one in server.updates)

            try:
                await until(is_done)
                assert not polling.done(), polling.exception()
                with pytest.raises(Conflict, match="another process"):
                    await bot().poll(str(api.http.base_url), Groups.MENTIONS)
                server.updates.append(press("old", update_id=4))
                channels.is_away = True
                await until(lambda: polling.done() or not channels.is_away)
                assert "the database does not answer" in capsys.readouterr().err
                await until(is_done)
                assert not polling.done(), polling.exception()
            finally:
                while not polling.done():
                    polling.cancel()
                    await asyncio.wait([polling], timeout=3)
            assert polling.cancelled()
            stored = await channels.find("default", ChannelKind.TELEGRAM)
            assert stored is not None
            assert stored.config["username"] == "planq_bot"

    timeout = timedelta(seconds=20)
    with bot_server() as server:
        server.updates = [said("one", update_id=1), said("two", update_id=2), press("old", update_id=3)]
        asyncio.run(play(server))
    assert api.jobs.execute("SELECT polled_until <= now() AS is_free FROM channels") == [{"is_free": True}]
    rows = api.jobs.execute("SELECT text FROM conversation_messages ORDER BY sequence")
    assert [row["text"] for row in rows] == ["one", "two"]
    methods = [method for method, _ in server.calls]
    assert "deleteWebhook" in methods
    assert "sendChatAction" in methods

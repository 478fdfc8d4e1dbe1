"""The run's own PostgreSQL and Valkey in a folder of their own, each also behind a TCP proxy."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import psycopg
import redis

from planq.deploy.local.child import wait_ended
from planq.deploy.local.postgres import PORT, EmbeddedPostgres
from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.kernel.states import OWN_QUEUES
from planq.shared.schema.migrate import upgrade
from tests.support.poison import poison_redis
from tests.support.proxy import TcpProxy
from tests.support.refusing import REFUSALS
from tests.support.servers import FUNCTIONS_FOUND
from tests.support.torn import FATAL
from tests.support.waiting import eventually

_END_PATIENCE_SECONDS = 30.0

REFUSES_SECONDS = 2.0
"""How long the broker refuses: workers have met it, and have begun to wait between their connections."""


class Servers:
    """Start and stop from the main thread only: the servers die with the thread that forked them."""

    def __init__(self, folder: Path) -> None:
        self._valkey_data = folder / "valkey" / "data"
        self.postgres = EmbeddedPostgres(folder / "postgres", options=FUNCTIONS_FOUND)
        self.valkey = EmbeddedValkey(folder / "valkey")
        self.database_proxy: TcpProxy | None = None
        self.broker_proxy: TcpProxy | None = None
        self._database_lock = asyncio.Lock()
        self.outages: list[tuple[float, float]] = []
        """When PostgreSQL was down: from, to, in seconds since 1970."""
        self._broker_lock = asyncio.Lock()

    def start(self) -> None:
        """Start everything on an empty, migrated database."""
        self.valkey.start()
        self.postgres.start()
        upgrade(self.postgres.url)
        folder = unquote(parse_qs(urlsplit(self.postgres.url).query)["host"][0])
        self.database_proxy = TcpProxy(Path(folder) / f".s.PGSQL.{PORT}")
        self.broker_proxy = TcpProxy(self.valkey.socket_path)
        self.database_proxy.start()
        self.broker_proxy.start()

    def stop(self) -> None:
        """Stop everything; idempotent."""
        for proxy in (self.database_proxy, self.broker_proxy):
            if proxy is not None:
                proxy.stop()
        self.postgres.stop()
        self.valkey.stop()

    def urls(self, *, proxied: bool) -> dict[str, str]:
        """Return the environment variables by which a process finds both servers."""
        if not proxied:
            return {"DATABASE_URL": self.postgres.url, "BROKER_URL": self.valkey.url}
        assert self.database_proxy is not None
        assert self.broker_proxy is not None
        return {
            "DATABASE_URL": f"postgresql://planq@127.0.0.1:{self.database_proxy.port}/planq",
            "BROKER_URL": f"redis://127.0.0.1:{self.broker_proxy.port}/0",
        }

    async def restart_database(self) -> str:
        """Restart PostgreSQL as `pg_ctl restart -m immediate` does: no checkpoint, crash recovery at the start."""
        async with self._database_lock:
            down_at = time.time()
            await self._end(self.postgres.pid, signal.SIGQUIT, self.postgres)
            self.postgres.launch()
            await asyncio.to_thread(self.postgres.wait_ready)
            self.outages.append((down_at, time.time()))
        return "restarted"

    async def restart_broker_empty(self) -> str:
        """Kill Valkey and start it without its data."""
        async with self._broker_lock:
            await self._end(self.valkey.pid, signal.SIGKILL, self.valkey)
            shutil.rmtree(self._valkey_data)
            self.valkey.launch()
            await asyncio.to_thread(self.valkey.wait_ready)
        return "restarted empty"

    async def restart_broker_torn(self, number: int) -> str:
        """Kill Valkey, tear its file in one of the ways, and start it again as a supervisor does: it starts empty."""
        name = list(FATAL)[number % len(FATAL)]
        async with self._broker_lock:
            await self._end(self.valkey.pid, signal.SIGKILL, self.valkey)
            try:
                FATAL[name](self._valkey_data)
            except ValueError:
                name = "no file yet"  # the server was killed before it had written one
            self.valkey.launch()
            # Launched from here, not from the thread that waits: the server dies with the thread that forked it.
            await asyncio.to_thread(self._settled)
            if self.valkey.has_died():
                self.valkey.launch()
            await asyncio.to_thread(self.valkey.wait_ready)
        return name

    def _settled(self) -> None:
        """Wait until Valkey answers, or has ended."""
        with redis.Redis(unix_socket_path=str(self.valkey.socket_path), retry=None) as client:

            def is_decided() -> bool:
                try:
                    return self.valkey.has_died() or bool(client.ping())
                except redis.RedisError:
                    return False

            eventually(is_decided, _END_PATIENCE_SECONDS, what="Valkey answers or has ended")

    async def let_broker_refuse(self, number: int) -> str:
        """Let Valkey answer with one of its errors for a while."""
        refusal = list(REFUSALS.values())[number % len(REFUSALS)]
        async with self._broker_lock:
            with redis.Redis(unix_socket_path=str(self.valkey.socket_path)) as client:
                await asyncio.to_thread(refusal.begin, client, self._valkey_data)
                try:
                    await asyncio.sleep(REFUSES_SECONDS)
                finally:
                    await asyncio.to_thread(refusal.end, client, self._valkey_data)
        return refusal.code

    async def poison_broker(self) -> str:
        """Write into both queues what is no wake-up."""
        return await asyncio.to_thread(self._poison)

    def _poison(self) -> str:
        try:
            with redis.Redis(unix_socket_path=str(self.valkey.socket_path)) as client:
                count = sum(len(poison_redis(client, queue)) for queue in OWN_QUEUES)
        except redis.RedisError as error:
            return f"not now: {type(error).__name__}"
        return f"{count} entries"

    async def _end(self, pid: int | None, number: signal.Signals, server: EmbeddedPostgres | EmbeddedValkey) -> None:
        process = server._process
        if pid is None or process is None:
            return
        os.kill(pid, number)
        await asyncio.to_thread(wait_ended, process, _END_PATIENCE_SECONDS)

    async def terminate_backends(self) -> str:
        """Cut every connection to the database but this one."""
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'planq' AND pid <> %s"
        try:
            async with await psycopg.AsyncConnection.connect(self.postgres.url, autocommit=True) as connection:
                cursor = await connection.execute(query, (connection.info.backend_pid,))
                row = await cursor.fetchone()
        except psycopg.OperationalError as error:
            return f"not now: {type(error).__name__}"
        return f"{row[0] if row else 0} connections"

    async def flush_broker(self) -> str:
        """Empty Valkey."""
        return await asyncio.to_thread(self._command, "FLUSHALL")

    async def kill_broker_clients(self) -> str:
        """Cut every connection to Valkey but this one."""
        return await asyncio.to_thread(self._command, "CLIENT", "KILL", "SKIPME", "yes")

    def _command(self, *words: str) -> str:
        try:
            with redis.Redis(unix_socket_path=str(self.valkey.socket_path)) as client:
                answer = client.execute_command(*words)
        except redis.RedisError as error:
            return f"not now: {type(error).__name__}"
        return str(answer)

"""Secrets planted wherever one can stand are found nowhere that planq writes or tells."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
import redis

from planq.deploy.local.valkey import EmbeddedValkey
from planq.shared.platform.database import Database
from planq.shared.subjects.tenants.master_keys import read_master_keys
from planq.shared.subjects.tenants.secrets import SecretStore
from tests.e2e.test_main_job import plan
from tests.e2e.test_mcp import probe, write_config
from tests.integration.llm.dialects import OPENAI_CHAT
from tests.integration.llm.wire import Reply, WireServer
from tests.integration.tools.mcp_probe import HttpProbe
from tests.support.ports import free_port
from tests.support.recorder import Recorder, recorder
from tests.support.stack import ROOT, Stack
from tests.support.waiting import eventually

PLACES = (
    *("database", "broker", "api-key", "model-key", "model-user", "model-query", "search-key"),
    *("tenant", "mcp-user", "mcp-query", "mcp-header", "mcp-env", "lost-user", "lost-query", "lost-header", "flower"),
)
SECRETS = {place: f"planted-{place}-5f3a" for place in PLACES}
SECRETS["master"] = b64encode(b"planted-master-key-of-32-bytes!!").decode()


@pytest.fixture
def broker_url(tmp_path: Path) -> Iterator[str]:
    """A broker that asks for a password."""
    valkey, port = EmbeddedValkey(tmp_path / "valkey"), free_port()
    valkey.start()
    with redis.Redis(unix_socket_path=str(valkey.socket_path)) as control:
        control.config_set("port", port)
        control.config_set("requirepass", SECRETS["broker"])
    yield f"redis://:{SECRETS['broker']}@127.0.0.1:{port}/0"
    valkey.stop()


@pytest.fixture
def model() -> Iterator[WireServer]:
    """A model server that refuses the key, which is the tenant's own, and repeats it with the whole address."""
    running = WireServer()
    told = f"no such key: {SECRETS['tenant']} (http://{SECRETS['model-user']}@here/v1?k={SECRETS['model-query']})"
    running.script(Reply({"error": {"message": told}}, status=401))
    yield running
    running.close()


@pytest.fixture
def mcp(tmp_path: Path) -> Iterator[HttpProbe]:
    running = HttpProbe(tmp_path)
    running.start()
    yield running
    running.kill()


@pytest.fixture
def lost() -> Iterator[Recorder]:
    """An MCP server that answers every request with an error in which it repeats what it was sent."""
    with recorder() as running:
        running.answer(500, {"error": f"{SECRETS['lost-header']} {SECRETS['lost-user']} {SECRETS['lost-query']}"})
        yield running


@pytest.fixture
def searched() -> Iterator[Recorder]:
    """A search server that answers with an error in which it repeats the key that it was sent."""
    with recorder() as running:
        running.answer(500, {"error": f"no such key: {SECRETS['search-key']}"})
        yield running


PROBES = ("/metrics", "/readyz", "/statusz")


def servers(folder: Path, mcp: HttpProbe, lost: Recorder) -> str:
    local = probe(folder)
    return write_config(
        folder,
        local={**local, "env": {**local["env"], "TOKEN": SECRETS["mcp-env"]}},
        remote={
            "type": "http",
            "url": f"http://me:{SECRETS['mcp-user']}@127.0.0.1:{mcp.port}/mcp?api_key={SECRETS['mcp-query']}",
            "headers": {"Authorization": f"Bearer {SECRETS['mcp-header']}"},
        },
        lost={
            "type": "http",
            "url": f"http://me:{SECRETS['lost-user']}@127.0.0.1:{lost.server_address[1]}/?k={SECRETS['lost-query']}",
            "headers": {"X-Api-Key": SECRETS["lost-header"]},
        },
    )


def settings(flower_port: int, mcp_file: str, model_url: str, search_url: str) -> dict[str, str]:
    return {
        "PLANQ_API_KEYS": SECRETS["api-key"],
        "PLANQ_SECRET_KEYS": SECRETS["master"],
        "PLANQ_LOG_LEVEL": "DEBUG",
        "PLANQ_TASK_EVENTS": "true",
        "PLANQ_FLOWER_PORT": str(flower_port),
        "PLANQ_FLOWER_PASSWORD": SECRETS["flower"],
        "PLANQ_MCP_FILE": mcp_file,
        "PLANQ_MODEL": OPENAI_CHAT.model,
        "PLANQ_MODEL_BASE_URL": f"http://u:{SECRETS['model-user']}@127.0.0.1:{model_url.rpartition(':')[2]}/v1",
        "OPENAI_API_KEY": SECRETS["model-key"],
        "PLANQ_WEB_SEARCH": "tavily",
        "PLANQ_WEB_SEARCH_URL": search_url,
        "PLANQ_WEB_SEARCH_API_KEY": SECRETS["search-key"],
    }


@pytest.mark.timeout(300)  # five processes, Flower's inspection of them and the doctor's look at all of it
def test_no_planted_secret_is_written_or_told(
    make_stack: Callable[..., Stack],
    database_url: str,
    broker_url: str,
    model: WireServer,
    mcp: HttpProbe,
    lost: Recorder,
    searched: Recorder,
    tmp_path: Path,
) -> None:
    flower_port = free_port()
    env = settings(flower_port, servers(tmp_path, mcp, lost), model.url, searched.url)
    # The server trusts its socket; what is sent all the same is no less a secret.
    guarded = database_url.replace("planq@", f"planq:{SECRETS['database']}@", 1)
    asyncio.run(keep_secret(database_url))
    stack = make_stack(guarded, broker_url, env=env)
    stack.run("flower", "-m", "planq.deploy.cli.main", "flower")
    stack.start()
    http = httpx.Client(base_url=stack.url, headers={"Authorization": f"Bearer {SECRETS['api-key']}"}, timeout=30)
    wanted = {"remote_add", "local_add"}
    eventually(lambda: wanted <= {one["name"] for one in http.get("/tools").json()["items"]}, 60)

    calls = plan(
        ("remote_add", {"numbers": [1, 2]}),
        ("local_add", {"numbers": [3, 4]}),
        ("web_search", {"query": "anything"}),
    )
    for body in ({"plan": calls}, {"input": "what is 3 * 4"}):
        job_id = http.post("/jobs", json=body).json()["id"]
        ended = eventually(lambda: (job := http.get(f"/jobs/{job_id}").json())["finished_at"] and job, 60)  # noqa: B023
        assert "error" in ended

    told = {
        "API": "".join(http.get(path).text for path in ("/jobs", f"/jobs/{job_id}", "/tools", *PROBES)),
        "database": stored(database_url),
        "broker": kept(broker_url),
        "Flower": seen_by_flower(flower_port),
        "doctor": doctor(stack, guarded, broker_url, env),
        **{f"log of {name}": stack.log(name).read_text() for name in stack.processes},
    }
    http.close()

    # Flower and a worker that has nothing to do say little.
    assert {place for place, text in told.items() if len(text) < 100} <= {"log of flower", "log of cpu-1"}
    found = [(place, secret) for place, text in told.items() for name, secret in SECRETS.items() if secret in text]
    assert found == []


async def keep_secret(database_url: str) -> None:
    """Store a secret of the tenant whose jobs run."""
    async with Database(database_url, max_connections=1) as database:
        masters = read_master_keys(SECRETS["master"])
        await SecretStore(database, masters).put("default", "openai_api_key", SECRETS["tenant"])


def stored(database_url: str) -> str:
    """Every row of every table as text."""
    with psycopg.connect(database_url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'planq'").fetchall()
        rows = [connection.execute(f'SELECT row_to_json(t)::text FROM "{name}" t').fetchall() for (name,) in names]  # type: ignore[call-overload]
    return "\n".join(str(row) for table in rows for row in table)


def kept(broker_url: str) -> str:
    """Every key of the broker with its value."""
    with redis.Redis.from_url(broker_url) as broker:
        return repr([(key, broker.dump(key)) for key in broker.scan_iter()]) + repr(broker.client_list())


def seen_by_flower(port: int) -> str:
    auth = ("planq", SECRETS["flower"])
    base = f"http://127.0.0.1:{port}"

    def workers() -> str:
        try:
            text = httpx.get(f"{base}/api/workers", params={"refresh": "true"}, auth=auth, timeout=20).text
        except httpx.TransportError:
            return ""
        return text if "planq-io" in text else ""

    shown = eventually(workers, 60, what="Flower sees the workers")
    pages = ("/api/tasks", "/api/queues/length", "/metrics", "/", "/workers", "/broker", "/tasks")
    name = next(iter(json.loads(shown)))
    return shown + "".join(httpx.get(f"{base}{page}", auth=auth).text for page in (*pages, f"/worker/{name}"))


def doctor(stack: Stack, database_url: str, broker_url: str, env: dict[str, str]) -> str:
    more = {"DATABASE_URL": database_url, "BROKER_URL": broker_url, "PLANQ_API_KEY": SECRETS["api-key"]}
    done = subprocess.run(
        [sys.executable, "-m", "planq.deploy.cli.main", "doctor"],
        env={"PATH": os.environ["PATH"], **env, **more, "PLANQ_URL": stack.url},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr

"""Error replies of a Valkey that is there and will not write: each begins and ends while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.support.waiting import eventually

Change = Callable[[redis.Redis, Path], None]


@dataclass(frozen=True, slots=True)
class Refusal:
    """`code` begins the reply. `begin` and `end` take a client and the server's data folder.

    `ends_reading`: the server refuses to hand out messages too, not only to take them.
    """

    code: str
    begin: Change
    end: Change
    ends_reading: bool = True


def _set(**options: str) -> Change:
    def change(client: redis.Redis, _: Path) -> None:
        for name, value in options.items():
            client.config_set(name.replace("_", "-"), value)

    return change


def _cannot_save(client: redis.Redis, data: Path) -> None:
    """Let the server find that it cannot write a snapshot, as on a full disk."""
    blocked = data / "dump.rdb" / "blocked"
    blocked.mkdir(parents=True)
    client.config_set("save", "3600 1")
    client.bgsave()
    eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="a snapshot failed")


def _can_save(client: redis.Redis, data: Path) -> None:
    (data / "dump.rdb" / "blocked").rmdir()
    (data / "dump.rdb").rmdir()
    client.config_set("save", "")
    client.bgsave()
    eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok", what="a snapshot succeeded")
    (data / "dump.rdb").unlink()


def _demoted(client: redis.Redis, _: Path) -> None:
    client.replicaof("127.0.0.1", "1")  # no master answers there: what the server has it keeps


def _promoted(client: redis.Redis, _: Path) -> None:
    client.replicaof("NO", "ONE")


REFUSALS: Mapping[str, Refusal] = {
    "MISCONF": Refusal("MISCONF", _cannot_save, _can_save),
    "READONLY": Refusal("READONLY", _demoted, _promoted),
    "NOREPLICAS": Refusal("NOREPLICAS", _set(min_replicas_to_write="1"), _set(min_replicas_to_write="0")),
    "OOM": Refusal("OOM", _set(maxmemory="1"), _set(maxmemory="0"), ends_reading=False),
}

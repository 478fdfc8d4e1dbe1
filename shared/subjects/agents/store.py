"""Versioned documents of agents and skills; a stored version never changes.

An unchanged document keeps its version. A retired one serves only the jobs that pinned it. Retention deletes replaced
versions that nobody pins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from planq.shared.agentic.agents.document import AgentDocument, read_agent
from planq.shared.agentic.models.names import check_model_name
from planq.shared.agentic.rounds.block import MAX_PROMPT_CHARS, block_refused, merged, parse_block, prompt_defects
from planq.shared.kernel.states import Strategy
from planq.shared.platform.database import Database, Row, as_json
from planq.shared.platform.errors import Conflict, InvalidRequest, NotFound, capped, storable
from planq.shared.platform.values.decoding import decode

_LOOKS = 10
"""Maximum tries for a version number; each time another writer has succeeded."""

_MOST_NAMED = 50


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """One version; `content` is an agent's JSON text, or a skill's text."""

    name: str
    version: int
    content: str
    created_at: datetime
    retired_at: datetime | None

    @classmethod
    def of(cls, row: Row) -> StoredDocument:
        return cls(**row)


@dataclass(frozen=True, slots=True)
class PutResult:
    """A document's version; `is_new`: this call stored it."""

    version: int
    created_at: datetime
    is_new: bool


class DocumentStore:
    """The documents of one kind, `agent` or `skill`."""

    def __init__(self, database: Database, kind: str) -> None:
        if kind not in ("agent", "skill"):
            raise ValueError(f"expected 'agent' or 'skill', found {kind!r}")
        self._database = database
        self._kind = kind

    async def put(
        self,
        tenant_id: str,
        name: str,
        content: str,
        *,
        skills: Sequence[str] | None = None,
        strategy: str | None = None,
        loop: Mapping[str, Any] | None = None,
    ) -> PutResult:
        """Store a checked document, unless the version in use is identical.

        `skills`, `strategy` and `loop` are an agent's; `skills` is None for a skill. Idempotent. Raises `Conflict` if
        others keep storing the name.
        """
        given: dict[str, Any] = {"content": content, "digest": sha256(content.encode()).hexdigest()}
        if skills is not None:
            given |= {"skills": list(skills), "strategy": strategy, "loop_block": as_json(loop)}
        for _ in range(_LOOKS):
            row = await self._database.fetch_one(f"put_{self._kind}", tenant_id=tenant_id, name=name, **given)
            if row is not None:
                return PutResult(**row)
        raise Conflict(f"{self._kind} {name!r} is being stored by others all the time; send it again")

    async def get(self, tenant_id: str, name: str, version: int | None = None) -> StoredDocument:
        """Return a version, also retired, or the newest in use; raises `NotFound` naming known ones."""
        row = await self._database.fetch_one(
            f"get_{self._kind}", tenant_id=tenant_id, name=storable(name), version=version
        )
        if row is None:
            raise await self._missing(tenant_id, name, version)
        return StoredDocument.of(row)

    async def newest(self, tenant_id: str, names: Collection[str]) -> Mapping[str, int]:
        """Return the newest versions in use, by name."""
        if not names:
            return {}
        rows = await self._database.fetch_all(
            f"pin_{self._kind}s", tenant_id=tenant_id, names=[storable(name) for name in names]
        )
        return {row["name"]: row["version"] for row in rows}

    async def in_use(self, tenant_id: str, names: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return the newest documents in use, by name."""
        wanted = list(dict.fromkeys(storable(name) for name in names))
        rows = await self._database.fetch_all(f"{self._kind}s_in_use", tenant_id=tenant_id, names=wanted)
        return {row["name"]: row["document"] for row in rows}

    async def page(self, tenant_id: str, *, after: str = "", limit: int) -> Sequence[StoredDocument]:
        """Return the newest versions of at most `limit` documents in use, sorted by name."""
        rows = await self._database.fetch_all(f"list_{self._kind}s", tenant_id=tenant_id, after=after, limit=limit)
        return [StoredDocument.of(row) for row in rows]

    async def retire(self, tenant_id: str, name: str) -> None:
        """Retire all versions of a document; raises `NotFound`."""
        if not await self._database.execute(f"retire_{self._kind}", tenant_id=tenant_id, name=storable(name)):
            raise await self._missing(tenant_id, name, None)

    async def _missing(self, tenant_id: str, name: str, version: int | None) -> NotFound:
        row = await self._database.fetch_one(
            f"name_{self._kind}s", tenant_id=tenant_id, name=storable(name), limit=_MOST_NAMED
        )
        names: list[str] = row["names"] if row else []
        versions: list[int] = row["versions"] if row else []
        shown = repr(capped(name, 80))
        if version is not None and versions:
            known = ", ".join(map(str, versions))
            return NotFound(f"{self._kind} {shown} has no version {version}; there are {known}", versions=versions)
        was = "is retired" if versions else "does not exist"
        known = ", ".join(names) or "none: `planq agents apply` stores some"
        return NotFound(f"{self._kind} {shown} {was}; there are {known}", known=names)


@dataclass(frozen=True, slots=True)
class PinnedAgent:
    """An agent for a new job, with the newest versions of its stored skills."""

    version: int
    document: AgentDocument
    skills: Mapping[str, int]

    def skill_versions(self) -> list[int]:
        """Return the version of each listed skill; raises `InvalidRequest` if one is missing."""
        if missing := [name for name in self.document.skills if name not in self.skills]:
            listed = ", ".join(repr(capped(name, 80)) for name in missing[:_MOST_NAMED])
            raise InvalidRequest(
                f"agent {self.document.name!r} lists skills that are not stored: {listed}; store them first"
            )
        return [self.skills[name] for name in self.document.skills]

    def strategy(self, default: Strategy = Strategy.PLAN) -> Strategy:
        return Strategy(self.document.strategy or default)

    def loop(self, above: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
        """Return the stored form of the loop block, with the policy of the parent job's `above`."""
        policy = (above or {}).get("policy")
        block = merged(self.document.loop_block(), None if policy is None else parse_block({"policy": policy}))
        return None if block is None else block.to_json()

    def model_or(self, default: str) -> str:
        """Return the document's model, or `default`; raises `InvalidRequest`."""
        if self.document.model is None:
            return default
        model = self.document.options(model=default).model
        if model != default:
            check_model_name(model, allow_cassette=False)
        return model


async def pin_agent(
    agents: DocumentStore,
    skills: DocumentStore,
    tenant_id: str,
    name: str,
    version: int | None = None,
    *,
    may_be_retired: bool = False,
) -> PinnedAgent:
    """Return a version of an agent, or the newest in use; raises `NotFound`.

    A retired one only works in conversations that began with it.
    """
    stored = await agents.get(tenant_id, name, version)
    if stored.retired_at is not None and not may_be_retired:
        raise NotFound(f"agent {capped(name, 80)!r} is retired, its version {version} too; name another agent")
    document = read_agent(decode(stored.content))
    return PinnedAgent(stored.version, document, await skills.newest(tenant_id, document.skills))


async def with_prompt(
    skills: DocumentStore, tenant_id: str, loop: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return a loop block with the text of its prompt's skill; raises `InvalidRequest` if missing or no template."""
    prompt = (loop or {}).get("prompt") or {}
    if loop is None or prompt.get("name") is None or prompt.get("text") is not None:
        return loop
    try:
        text = (await skills.get(tenant_id, prompt["name"])).content
    except NotFound as error:
        raise block_refused([(("prompt",), f"expected the name of a stored skill: {error.message}")]) from error
    found = list(prompt_defects(text))
    if len(text) > MAX_PROMPT_CHARS:
        found.append(f"it has {len(text)} characters; a prompt has at most {MAX_PROMPT_CHARS}")
    if found:
        raise block_refused([(("prompt",), f"the skill is no prompt template: {one}") for one in found])
    return {**loop, "prompt": {**prompt, "text": text}}

"""Agents and skills as callers store them: documents with versions, never changed once they are stored.

A document that is stored again unchanged keeps its version; any other becomes the next one. What is retired can be
named by no new job, and stays for the jobs that pinned it. Retention deletes what was replaced and nobody pins.
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
"""How often a version is tried that others keep taking; each time at least one of them has got on."""

_MOST_NAMED = 50


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """One version of an agent or a skill: `content` is the JSON text of an agent's document, or a skill's text."""

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
    """Which version a document has now; `is_new` says whether it was stored by this call."""

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
        """Store a document that has been checked, unless the version in use is the same character by character.

        `skills`, `strategy` and `loop` are what an agent's document says of these; `skills` is None for a skill.
        Idempotent. Raises `Conflict` where others keep storing the same name at this moment.
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
        """Return a version, retired ones too, or the newest in use; raises `NotFound` that names what there is."""
        row = await self._database.fetch_one(
            f"get_{self._kind}", tenant_id=tenant_id, name=storable(name), version=version
        )
        if row is None:
            raise await self._missing(tenant_id, name, version)
        return StoredDocument.of(row)

    async def newest(self, tenant_id: str, names: Collection[str]) -> Mapping[str, int]:
        """Return the newest version in use of each of these documents; what is not in use is left out."""
        if not names:
            return {}
        rows = await self._database.fetch_all(
            f"pin_{self._kind}s", tenant_id=tenant_id, names=[storable(name) for name in names]
        )
        return {row["name"]: row["version"] for row in rows}

    async def in_use(self, tenant_id: str, names: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return the newest document in use of each of these names; what is not in use is left out."""
        wanted = list(dict.fromkeys(storable(name) for name in names))
        rows = await self._database.fetch_all(f"{self._kind}s_in_use", tenant_id=tenant_id, names=wanted)
        return {row["name"]: row["document"] for row in rows}

    async def page(self, tenant_id: str, *, after: str = "", limit: int) -> Sequence[StoredDocument]:
        """Return at most `limit` documents in use, each in its newest version, in the order of their names."""
        rows = await self._database.fetch_all(f"list_{self._kind}s", tenant_id=tenant_id, after=after, limit=limit)
        return [StoredDocument.of(row) for row in rows]

    async def retire(self, tenant_id: str, name: str) -> None:
        """Take a document out of use, every version of it; raises `NotFound` when none is in use."""
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
    """An agent as a new job of it gets it, with the newest versions of those of its skills that are there."""

    version: int
    document: AgentDocument
    skills: Mapping[str, int]

    def skill_versions(self) -> list[int]:
        """Return the version of each skill that the document lists; raises `InvalidRequest` where one lacks."""
        if missing := [name for name in self.document.skills if name not in self.skills]:
            listed = ", ".join(repr(capped(name, 80)) for name in missing[:_MOST_NAMED])
            raise InvalidRequest(
                f"agent {self.document.name!r} lists skills that are not stored: {listed}; store them first"
            )
        return [self.skills[name] for name in self.document.skills]

    def strategy(self, default: Strategy = Strategy.PLAN) -> Strategy:
        return Strategy(self.document.strategy or default)

    def loop(self, above: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
        """Return the document's loop block as it is stored with a job; raises `InvalidRequest` for a broken one.

        Of `above`, the block of the job that this one is made for, the policy counts too.
        """
        policy = (above or {}).get("policy")
        block = merged(self.document.loop_block(), None if policy is None else parse_block({"policy": policy}))
        return None if block is None else block.to_json()

    def model_or(self, default: str) -> str:
        """Return the model that the document names, else `default`; raises `InvalidRequest` for one that is none."""
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
    """Return a version of an agent, without one the newest in use; raises `NotFound` where there is none.

    What is retired is named by nobody anew; it may be where a conversation has begun with it.
    """
    stored = await agents.get(tenant_id, name, version)
    if stored.retired_at is not None and not may_be_retired:
        raise NotFound(f"agent {capped(name, 80)!r} is retired, its version {version} too; name another agent")
    document = read_agent(decode(stored.content))
    return PinnedAgent(stored.version, document, await skills.newest(tenant_id, document.skills))


async def with_prompt(
    skills: DocumentStore, tenant_id: str, loop: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return a job's loop block with the text of the skill that its prompt names, in the version in use now.

    Raises `InvalidRequest` for a skill that is not there, and for one that is no prompt template.
    """
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

"""Values in and out of a step: arguments put together from outputs, outputs checked and made ready to be kept.

An output is encoded once; what is large is worked on in a thread. A large output is kept as a payload, apart from its
step, and read again only by a step whose references its excerpts do not cover.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planq.shared.agentic.references.resolution import MAX_SIZE, ResolvedArguments, resolve, uncovered
from planq.shared.agentic.results.artifacts import MAX_CONTENT, ArtifactIdentity, identify, is_artifact_id
from planq.shared.agentic.schema.schemas import Steps, compile_schema
from planq.shared.agentic.tools.contract import BytesArtifact, RichOutput, Suspended, Tool
from planq.shared.agentic.tools.definition import ToolDefinition
from planq.shared.agentic.tools.scoping import unscoped
from planq.shared.kernel.children import Delegated
from planq.shared.kernel.claims import StepClaim
from planq.shared.kernel.job_store import ArtifactRecord, PayloadRecord
from planq.shared.kernel.questions import StepQuestion
from planq.shared.kernel.retry import Phase
from planq.shared.kernel.steps import RoundRecord, StepResult
from planq.shared.platform.computing import INLINE_CHARS, off_loop
from planq.shared.platform.errors import ExecutionFailed, InvalidArguments, InvalidOutput, StorageUnavailable, capped
from planq.shared.platform.values.encoding import JsonText, encode, measure, most_parts, output_text
from planq.shared.platform.values.excerpts import Excerpts, descend, excerpts_json
from planq.shared.platform.values.pointers import Path
from planq.shared.platform.values.preview import preview_json
from planq.shared.subjects.payloads.contract import Payloads
from planq.worker.engine.persist import persist

_LOADS_AT_ONCE = 2
"""A payload takes several times its size while it is decoded; a wide plan over one large output loads it in turn."""


_STEPS_AT_ONCE = 20_000
"""Steps of a schema's check on the event loop, some 50 ms; what takes more is begun again in a thread."""


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Bytes of an output's JSON: above `inline` it is kept as a payload, above `most` its step fails."""

    most: int
    inline: int


@dataclass(frozen=True, slots=True)
class ReadyOutput:
    """A checked output, ready to be stored. `excerpts` and `preview` are None where it is small.

    `beside` are the bodies of the artifacts beside it, None for each that is small.
    """

    body: bytes
    artifact: ArtifactRecord | None
    excerpts: bytes | None = None
    preview: bytes | None = None
    beside: Sequence[ReadyOutput | None] = ()

    @property
    def has_payload(self) -> bool:
        """True where something of it is to be stored apart from the step."""
        return self.excerpts is not None or any(self.beside)


class Values:
    """What one process needs to read and write outputs."""

    def __init__(self, payloads: Payloads, limits: OutputLimits) -> None:
        self._payloads = payloads
        self._limits = limits
        self._loading = asyncio.Semaphore(_LOADS_AT_ONCE)

    async def arguments(self, claim: StepClaim, tool: Tool) -> dict[str, Any]:
        """Return the arguments to call with, without those that are user-scoped.

        Raises `InvalidArguments` when they do not fit the tool's input schema (a missing reference is then named) or
        would be too large, `StorageUnavailable` when a payload that they need cannot be had.
        """
        # One whole output fits, and what is put together beside it stays as bounded as ever.
        max_size = MAX_SIZE + self._limits.most
        lacking = uncovered(claim.arguments, claim.outputs)
        if not lacking and measure(claim.arguments, INLINE_CHARS) <= INLINE_CHARS:
            steps = Steps(_STEPS_AT_ONCE)
            try:
                return _resolved(claim, claim.outputs, tool.definition, max_size, (), steps)
            except InvalidArguments:
                if not steps.are_spent:
                    raise
        outputs = dict(claim.outputs)  # what is loaded into it belongs to this attempt alone
        for step, paths in lacking.items():
            outputs[step] = await self._loaded(claim.tenant_id, claim.outputs[step], paths)
        return await off_loop(_resolved, claim, outputs, tool.definition, max_size, lacking)

    async def ready(self, claim: StepClaim, tool: Tool, answer: Any) -> ReadyOutput:
        """Check and encode an answer; raises `InvalidOutput` for what is no JSON, too large, or breaks its schema."""
        if isinstance(answer, RichOutput):
            ready = await self.ready(claim, tool, answer.output)
            return await off_loop(_accompanied, ready, tool.definition, answer, claim, self._limits)
        body = output_text(tool.definition.name, answer, self._limits.most)
        if len(body) <= min(INLINE_CHARS, self._limits.inline):
            steps = Steps(_STEPS_AT_ONCE)
            try:
                return _ready(tool.definition, answer, body, claim, self._limits, steps)
            except InvalidOutput:
                if not steps.are_spent:
                    raise
        return await off_loop(_ready, tool.definition, answer, body, claim, self._limits)

    async def put(self, claim: StepClaim, output: ReadyOutput) -> tuple[ArtifactRecord | None, PayloadRecord | None]:
        """Store the bytes of what is large, which its step may then refer to; return what is to be stored with it.

        Idempotent. Nobody refers to them until the step is finished; if that never happens they are collected.
        """
        artifact = output.artifact
        if artifact is not None and any(output.beside):
            beside = list(artifact.beside)
            for position, large in enumerate(output.beside):
                if large is not None:
                    digest = await self._payloads.put(claim.tenant_id, large.body, large.preview or b"null")
                    beside[position] = replace(beside[position], hash=digest)
            artifact = replace(artifact, beside=beside)
        if output.excerpts is None or output.preview is None:
            return artifact, None
        digest = await self._payloads.put(claim.tenant_id, output.body, output.preview)
        return artifact, PayloadRecord(digest, len(output.body), output.excerpts)

    async def whole_rounds(self, tenant_id: str, rounds: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
        """Return rounds whose results have their whole outputs, for who reads them as values.

        Raises `InvalidArguments` where these are too large together, `StorageUnavailable` where one cannot be had.
        """
        cut = [one for record in rounds for one in record.results if one.payload is not None]
        if (size := sum(one.shortened_from or 0 for one in cut)) > self._limits.most:
            raise InvalidArguments(
                "the large outputs that expressions and planners of a loop block read must have at most "
                f"{self._limits.most} bytes together; found {size}. Let the tools return less."
            )
        known: dict[bytes | None, Any] = {}
        for digest in dict.fromkeys(one.payload for one in cut if one.payload is not None):
            async with self._loading:
                body = await persist(self._payloads.get, tenant_id, digest)
                known[digest] = await off_loop(json.loads, body)

        def whole(one: StepResult) -> StepResult:
            if one.payload is None:
                return one
            return replace(one, output=known[one.payload], shortened_from=None, payload=None)

        return (
            [replace(record, results=[whole(one) for one in record.results]) for record in rounds] if cut else rounds
        )

    async def _loaded(self, tenant_id: str, known: Excerpts, paths: Sequence[Path]) -> Excerpts:
        async with self._loading:
            body = await persist(self._payloads.get, tenant_id, known.hash)
            return await off_loop(lambda: known.extended(json.loads(body), paths))


def _resolved(
    claim: StepClaim,
    outputs: Mapping[int, Any],
    definition: ToolDefinition,
    max_size: int,
    owned: Collection[int],
    steps: Steps | None = None,
) -> dict[str, Any]:
    planned = claim.arguments
    if definition.user_scoped:
        planned = unscoped(planned, definition.user_scoped)
    if claim.verbatim:
        resolved = ResolvedArguments(copy.deepcopy(dict(planned)), ())
    else:
        resolved = resolve(planned, outputs, max_size=max_size, owned=owned)
    defects = compile_schema(definition.input_schema).violations(resolved.arguments, steps=steps)
    if defects or not isinstance(resolved.arguments, dict):
        shown = [f"{d.pointer or 'the arguments'}: {d.message}" for d in defects[:5]]
        shown += [missing.render() for missing in resolved.missing[:5]]
        raise InvalidArguments(f"arguments of {claim.tool_name!r} do not fit its input schema: {'; '.join(shown)}")
    return resolved.arguments


def _accompanied(
    ready: ReadyOutput, definition: ToolDefinition, answer: RichOutput, claim: StepClaim, limits: OutputLimits
) -> ReadyOutput:
    """Return an output with the artifacts and the text that came beside it."""
    records: list[ArtifactRecord] = []
    large: list[ReadyOutput | None] = []
    for wrapper in answer.artifacts:
        if isinstance(wrapper, BytesArtifact):
            record, stored = _of_bytes(definition, wrapper, claim, limits)
            records.append(record)
            large.append(stored)
            continue
        body = output_text(definition.name, wrapper, limits.most)
        identity = identify(wrapper)
        if identity is None:
            raise _unusable(definition)
        found = _record(identity, definition.skill_id or claim.skill_id)
        is_large = len(body) > limits.inline
        records.append(found if is_large else replace(found, body=JsonText(body)))
        large.append(ReadyOutput(body, None, None, preview_json(wrapper)) if is_large else None)
    content = None if answer.content is None else capped(answer.content, MAX_CONTENT)
    own = ready.artifact
    if own is None or any(record.id == own.id for record in records):  # then the output only tells of that one
        own = ArtifactRecord(None, None, None)
    artifact = replace(own, beside=records, content=content)
    return replace(ready, artifact=artifact, beside=large)


def _of_bytes(
    definition: ToolDefinition, made: BytesArtifact, claim: StepClaim, limits: OutputLimits
) -> tuple[ArtifactRecord, ReadyOutput]:
    """Return the record of an artifact of bytes, and the bytes as a payload, however few."""
    if not is_artifact_id(made.artifact_id):
        raise _unusable(definition)
    if len(made.data) > limits.most:
        raise InvalidOutput(
            f"tool {definition.name!r} returned the artifact {made.artifact_id!r} of {len(made.data)} bytes; at most "
            f"{limits.most} are kept: make it smaller, or return a reference to where it lies"
        )
    skill = made.metadata.get("skill_id") or definition.skill_id or claim.skill_id
    shown = encode({"value": {"media_type": made.media_type, "bytes": len(made.data)}, "is_whole": False})
    record = ArtifactRecord(made.artifact_id, skill, None, made.metadata, media_type=made.media_type)
    return record, ReadyOutput(made.data, None, None, shown)


def _unusable(definition: ToolDefinition) -> InvalidOutput:
    return InvalidOutput(f"tool {definition.name!r} returned an artifact without a usable artifact_id")


def _ready(
    definition: ToolDefinition,
    output: Any,
    body: bytes,
    claim: StepClaim,
    limits: OutputLimits,
    steps: Steps | None = None,
) -> ReadyOutput:
    name, wanted = definition.name, claim.wanted
    schema = compile_schema(definition.output_schema or {})
    defects = schema.violations(output, steps=steps, parts=most_parts(body))
    if defects:
        shown = "; ".join(f"{d.pointer or 'the output'}: {d.message}" for d in defects[:5])
        raise InvalidOutput(f"tool {name!r} broke its output schema: {shown}")
    identity = identify(output) if b'"artifact_id"' in body else None  # most outputs are no artifacts
    artifact = None if identity is None else _record(identity, definition.skill_id or claim.skill_id)
    if len(body) <= limits.inline:
        return ReadyOutput(body, artifact)
    excerpts = excerpts_json(_as_read(output, body, wanted), wanted)
    return ReadyOutput(body, artifact, excerpts, preview_json(output))


def _record(found: ArtifactIdentity, skill_id: str | None) -> ArtifactRecord:
    """Return what is kept of an artifact; `skill_id` is whose it is where it names no skill itself."""
    named = skill_id if found.skill_id is None else found.skill_id
    return ArtifactRecord(found.id, named, found.type, found.metadata)


def _as_read(output: Any, body: bytes, wanted: Sequence[Path]) -> Any:
    """Return an output in which the wanted paths lead where they do in its JSON.

    Keys that are no strings are strings there (1 becomes "1", True "true"); only then is the JSON read again.
    """
    for path in wanted:
        value = output
        for segment in path:
            if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
                return json.loads(body)
            value = descend(value, (segment,))
    return output


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """What an attempt came to; with a `failure` also in which `phase`. `is_elsewhere`: its tool is not here."""

    output: ReadyOutput | None = None
    suspended: Suspended | None = None
    delegated: Delegated | None = None
    asked: StepQuestion | None = None
    failure: ExecutionFailed | StorageUnavailable | None = None
    poisoned: bool = False
    phase: Phase = Phase.CALLING
    is_elsewhere: bool = False

    @property
    def small(self) -> ReadyOutput | None:
        if self.output is None or self.output.has_payload:
            return None
        return self.output

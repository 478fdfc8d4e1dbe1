"""`knowledge_search` and `search`: full-text search over loaded documents, and over a user's moments too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from planq.shared.agentic.tools.contract import Passage, ToolContext
from planq.shared.kernel.states import Effect
from planq.shared.subjects.moments.contract import MomentQuery, MomentRecord
from planq.worker.tools.declare import tool
from planq.worker.tools.services import ToolServices

_MOST_RESULTS = 50

_Query = Annotated[str, Field(description="What to look for, in plain words.", min_length=1, max_length=1_000)]
"""The query of both tools."""


class FoundPassage(TypedDict):
    """One passage that matched."""

    title: str
    source: Annotated[str, Field(description="Where the document came from.")]
    text: str
    score: Annotated[float, Field(description="Relevance; grows with the match, comparable within one search only.")]


class FoundPassages(TypedDict):
    """The passages, best first, as data and as one readable text."""

    results: list[FoundPassage]
    text: Annotated[str, Field(description="All passages as one text, each under its title and source.")]
    count: Annotated[int, Field(description="The number of passages.")]


@tool(effect=Effect.READ)
async def knowledge_search(
    query: _Query,
    context: ToolContext,
    services: ToolServices,
    limit: Annotated[int, Field(description="The most passages to return.", ge=1, le=_MOST_RESULTS)] = 5,
) -> FoundPassages:
    """Search the loaded documents (handbooks, manuals, notes) and return the best matching passages."""
    passages = await services.knowledge.search(context.tenant_id, query, limit)
    return {
        "results": [
            {"title": passage.title, "source": passage.source, "text": passage.text, "score": passage.score}
            for passage in passages
        ],
        "text": _readable(query, passages),
        "count": len(passages),
    }


def _readable(query: str, passages: Sequence[Passage]) -> str:
    if not passages:
        return f"Nothing was found for: {query}"
    return "\n\n".join(f"{passage.title} ({passage.source})\n{passage.text}" for passage in passages)


_Source = Literal["knowledge", "moments"]


class Hit(TypedDict):
    """One thing that matched."""

    kind: Annotated[Literal["passage", "moment"], Field(description="A passage of a document, or a moment.")]
    title: str
    source: Annotated[str, Field(description="Where the document came from, or the id of the moment.")]
    text: str
    score: Annotated[float, Field(description="Relevance; grows with the match, comparable within one search only.")]


class Hits(TypedDict):
    """What was found, best first, as data and as one readable text."""

    results: list[Hit]
    text: Annotated[str, Field(description="All results as one text, each under its title and source.")]
    count: Annotated[int, Field(description="The number of results.")]


@tool(effect=Effect.READ)
async def search(
    query: _Query,
    context: ToolContext,
    services: ToolServices,
    limit: Annotated[int, Field(description="The most results to return.", ge=1, le=_MOST_RESULTS)] = 10,
    sources: Annotated[
        list[_Source] | None, Field(description="Where to look: both by default.", min_length=1, max_length=2)
    ] = None,
) -> Hits:
    """Search the loaded documents and the user's saved moments, and return the best matches of both together."""
    found: list[Hit] = []
    if sources is None or "knowledge" in sources:
        found += map(_of_passage, await services.knowledge.search(context.tenant_id, query, limit))
    if sources is None or "moments" in sources:
        wanted = MomentQuery(query, limit=limit)
        found += map(_of_moment, await services.memory.find_moments(context.tenant_id, context.user_id, wanted))
    # Both are ranked by the same measure; what is equal keeps its order, passages first.
    best = sorted(found, key=lambda hit: -hit["score"])[:limit]
    return {"results": best, "text": _readable_hits(query, best), "count": len(best)}


def _of_passage(passage: Passage) -> Hit:
    return Hit(kind="passage", title=passage.title, source=passage.source, text=passage.text, score=passage.score)


def _of_moment(moment: MomentRecord) -> Hit:
    return Hit(
        kind="moment",
        title=moment.name,
        source=str(moment.id),
        text=moment.summary or moment.name,
        score=moment.score,
    )


def _readable_hits(query: str, hits: Sequence[Hit]) -> str:
    if not hits:
        return f"Nothing was found for: {query}"
    return "\n\n".join(f"{hit['title']} ({hit['kind']} {hit['source']})\n{hit['text']}" for hit in hits)

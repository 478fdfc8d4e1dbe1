"""`knowledge_search`: full-text search over the documents that `planq knowledge load` stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from shared.domain.states import Effect
from shared.ports import Passage, ToolContext
from worker.tools.declare import tool
from worker.tools.services import ToolServices

MAX_RESULTS = 50

Query = Annotated[str, Field(description="What to look for, in plain words.", min_length=1, max_length=1_000)]
"""What `search` looks for as well."""


class FoundPassage(TypedDict):
    """One passage that matched."""

    title: str
    source: Annotated[str, Field(description="Where the document came from.")]
    text: str
    score: Annotated[float, Field(description="Relevance; grows with the match, comparable within one search only.")]


class Found(TypedDict):
    """The passages, best first, as data and as one readable text."""

    results: list[FoundPassage]
    text: Annotated[str, Field(description="All passages as one text, each under its title and source.")]
    count: Annotated[int, Field(description="The number of passages.")]


@tool(effect=Effect.READ)
async def knowledge_search(
    query: Query,
    context: ToolContext,
    services: ToolServices,
    limit: Annotated[int, Field(description="The most passages to return.", ge=1, le=MAX_RESULTS)] = 5,
) -> Found:
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

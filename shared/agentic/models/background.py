"""What the questions of a job come with, beside the job itself: of its tenant, and of its conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planq.shared.agentic.models.ending import OnIncomplete
from planq.shared.agentic.models.exchange import ChatMessage
from planq.shared.agentic.turns.speakers import Speaker


@dataclass(frozen=True, slots=True)
class Background:
    """`tenant_prompt` is a text, if only "", in jobs of a conversation, and None in all others.

    `history` are the turns before this one, oldest first; `speaker` is whose this one is, where people are told
    apart. `tells_people`: messages of the history say who has written them. `planner_model` writes guides, None: the
    job's own model.
    `fallback_models` are asked in this order where the model of a question fails. In a turn `tools` are those
    that its tenant lists. `insights` is what a planner is told of earlier jobs. `on_incomplete` is the tenant's.
    """

    tenant_prompt: str | None = None
    history: Sequence[ChatMessage] = ()
    planner_model: str | None = None
    fallback_models: Sequence[str] = ()
    tools: Sequence[str] = ()
    insights: str = ""
    speaker: Speaker | None = None
    tells_people: bool = False
    on_incomplete: OnIncomplete = "accept"


NO_BACKGROUND = Background()

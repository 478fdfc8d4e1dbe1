"""The settings that say what planq learns from jobs that have ended."""

from __future__ import annotations

from pydantic import Field

from planq.shared.domain.insights.offering import InsightMode
from planq.shared.server_settings import ServerSettings


class LearningSettings(ServerSettings):
    """What is learned, what of it planners are offered, and how long it is kept."""

    insights: InsightMode = Field(
        default=InsightMode.OFF,
        description="Whether jobs that end teach insights, and planners are offered them: `off`, `shadow` (learned "
        "and chosen, shown to no planner), `on`. A tenant's configuration may say otherwise.",
    )

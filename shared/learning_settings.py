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
    insights_holdout: float = Field(
        default=0.1,
        ge=0,
        le=0.9,
        description="Which part of the jobs plans without insights where they are on, so that it is seen whether "
        "they help; by the id of the request.",
    )
    insights_days: float = Field(
        default=90.0, gt=0, le=3_650, description="How long an insight is kept after the last job that has taught it."
    )
    insights_sweep_seconds: float = Field(
        default=5.0, gt=0, description="Between two looks for jobs that have ended, to learn from."
    )

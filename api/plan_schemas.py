"""What the plans of a job look like in answers: those that are carried out, and guides, which are advice."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class PlanDocument(BaseModel):
    """The plan of a round."""

    model_config = ConfigDict(extra="allow")

    type: Literal["tool_calls"]
    reasoning: str | None = None
    calls: list[dict[str, Any]]


class GuideStepDocument(BaseModel):
    """One step of a guide; nothing executes it."""

    step_number: int
    description: str
    tool: str | None = Field(description="The tool that it needs, null for none.")
    tool_arguments: dict[str, Any]
    depends_on: list[int] = Field(description="Numbers of other steps, as the planner wrote them.")
    success_criteria: str


class GuideDocument(BaseModel):
    """The guide of a job of `guided`: advice that the model is told in its turns."""

    type: Literal["guide"]
    steps: list[GuideStepDocument]
    estimated_steps: int
    complexity: Literal["low", "medium", "high"]
    success_criteria: str

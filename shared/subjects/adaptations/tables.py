"""The table of what models' servers refuse."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, Text
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import text_column, time_column


class ModelAdaptationRow(SQLModel, table=True):
    """A change to requests for a model at a base URL that its server refused without it.
    It applies to all tenants, since refusals come from the server's software. `refusal` has the server's words. After
    `expires_at` requests are tried without the change again.
    """

    __tablename__ = "model_adaptations"
    base_url: str = Field(sa_column=Column(Text, primary_key=True))
    model: str = Field(sa_column=Column(Text, primary_key=True))
    adaptation: str = Field(sa_column=Column(Text, primary_key=True))
    refusal: str = text_column()
    learned_at: datetime = time_column(nullable=False, now=True)
    expires_at: datetime = time_column(nullable=False)

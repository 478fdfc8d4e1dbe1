"""The table of what models' servers refuse."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, Text
from sqlmodel import Field, SQLModel

from planq.shared.platform.columns import text_column, time_column


class ModelAdaptationRow(SQLModel, table=True):
    """One change to the requests for a model at a base URL, since its server refused them without it.

    Belongs to the server, not to a tenant: a refusal is a fact about the server's software. `refusal` has the
    server's words. After `expires_at` the row has no effect, so the request is tried without the change again.
    """

    __tablename__ = "model_adaptations"
    base_url: str = Field(sa_column=Column(Text, primary_key=True))
    model: str = Field(sa_column=Column(Text, primary_key=True))
    adaptation: str = Field(sa_column=Column(Text, primary_key=True))
    refusal: str = text_column()
    learned_at: datetime = time_column(nullable=False, now=True)
    expires_at: datetime = time_column(nullable=False)

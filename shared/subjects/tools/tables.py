"""The table of the tool catalogue."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlmodel import SQLModel

from planq.shared.platform.columns import json_column, text_column, time_column


class ToolRow(SQLModel, table=True):
    """A tool's definition as a worker published it, for all tenants; a tenant's configuration may narrow them."""

    __tablename__ = "tools"
    name: str = text_column(primary_key=True)
    definition: Any = json_column(nullable=False)
    published_at: datetime = time_column(nullable=False, now=True)

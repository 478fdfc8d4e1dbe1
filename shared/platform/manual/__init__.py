"""The manual: README and the pages of docs/, as a clone or a wheel has them, and a search over their sections."""

from __future__ import annotations

from planq.shared.platform.manual.pages import manual_pages, manual_pictures
from planq.shared.platform.manual.ranking import (
    ManualHit,
    ManualSection,
    anchor_of,
    search_pages,
    sections_of,
    without_links,
)

__all__ = [
    "ManualHit",
    "ManualSection",
    "anchor_of",
    "manual_pages",
    "manual_pictures",
    "search_pages",
    "sections_of",
    "without_links",
]

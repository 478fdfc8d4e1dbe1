"""The manual: README and the pages of docs/, as a clone or a wheel has them, and a search over their sections."""

from __future__ import annotations

from planq.shared.manual.pages import manual_pages, manual_picture
from planq.shared.manual.ranking import ManualHit, ManualSection, anchor_of, search_pages, sections_of

__all__ = [
    "ManualHit",
    "ManualSection",
    "anchor_of",
    "manual_pages",
    "manual_picture",
    "search_pages",
    "sections_of",
]

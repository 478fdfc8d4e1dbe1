"""What of a model's reply is meant for people, read while it comes.

A planner answers inside the forced tool `__planning__`, as a text in JSON, or in words beside it. Whoever watches is
shown the answer, as `planq.shared.agentic.plan.interpret` reads it at the end, and no plan.
"""

from __future__ import annotations

from enum import StrEnum

from planq.shared.agentic.plan.interpret import DIRECT, PLANNING_TOOL_NAME
from planq.shared.platform.errors import storable
from planq.shared.platform.values.partial_json import PartialObject

_JSON_BEGINS = ("{", "[", "```")
_BETWEEN_TEXTS = "\n\n"


class SpeechForm(StrEnum):
    """Where in a reply the words for people stand."""

    WORDS = "words"  # in its texts
    DECISION = "decision"  # in a direct answer through the planning tool, or in texts that are no JSON


class Speech:
    """The words of one reply, which comes in parts: texts and calls, each under a number.

    `version` counts how often what was shown has turned out not to be it: the text begins anew then.
    """

    def __init__(self, form: SpeechForm) -> None:
        self.version = 0
        self._form = form
        self._clear()

    def _clear(self) -> None:
        self._shown: list[str] = []
        self._parts: dict[int, str | None] = {}
        self._decision: PartialObject | None = None
        self._deciding = -1
        self._is_direct = False
        self._held = "" if self._form is SpeechForm.DECISION else None
        self._is_silent = False

    @property
    def text(self) -> str:
        if len(self._shown) > 1:
            self._shown = ["".join(self._shown)]
        return self._shown[0] if self._shown else ""

    def begin(self, part: int, tool_name: str | None = None) -> None:
        """Take note of a text, or of the call of a tool; what has the same number gives way, and all begins anew."""
        if part in self._parts:
            self._anew()
        self._parts[part] = tool_name
        if tool_name is None:
            if list(self._parts.values()).count(None) > 1:
                self._say(_BETWEEN_TEXTS)
        elif tool_name == PLANNING_TOOL_NAME and self._form is SpeechForm.DECISION and self._decision is None:
            parts = self._parts
            if self._shown:
                self._anew()
            self._parts, self._deciding, self._is_silent = parts, part, True
            self._decision = PartialObject(("type", "content"))

    def add(self, part: int, piece: str) -> None:
        """Take a piece of a part: of a text, or of a call's arguments as JSON."""
        if self._decision is not None and part == self._deciding:
            self._decision.feed(piece)
            self._is_direct = self._is_direct or self._decision.whole("type") == DIRECT
            if self._is_direct:
                self._show(self._decision.taken("content"))
        elif part in self._parts and self._parts[part] is None:
            self._say(piece)

    def _anew(self) -> None:
        self.version += 1
        self._clear()

    def _say(self, piece: str) -> None:
        """Show a piece of a text, unless it is JSON; blanks are held back until that is seen."""
        if self._held is not None and not self._is_silent:
            self._held += piece
            begins = self._held.lstrip()
            if any(mark.startswith(begins) for mark in _JSON_BEGINS):
                return
            self._is_silent = begins.startswith(_JSON_BEGINS)
            piece, self._held = self._held, None
        if not self._is_silent:
            self._show(piece)

    def _show(self, piece: str) -> None:
        if piece:
            self._shown.append(storable(piece))

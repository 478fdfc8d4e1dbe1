"""`tools.yaml`: what an operator says about Python functions, without touching their code.

    tools:
      - function: mypackage.shop:find         # module:function, the only required key
        name: shop_search
        effect: read
        lane: io
        timeout_seconds: 20
        retries: 3
        skill_id: research
      - function: mypackage.payments:pay
        recovery: ask          # or fail: what becomes of an unsafe call that was cut off

Every key wins over the function's own `@tool(...)`; a function without `@tool` becomes a tool by being listed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.domain.agents.marked import load_yaml
from shared.domain.errors import Misconfigured
from shared.domain.states import Recovery
from worker.tools.declare import ToolOptions, describe


class FunctionOptions(ToolOptions):
    """One entry: the options of one function."""

    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    recovery: Literal[Recovery.FAIL, Recovery.ASK] | None = None
    find_out: None = None

    def options(self) -> ToolOptions:
        """Return the options alone."""
        return ToolOptions.model_construct(**self.model_dump(exclude={"function"}))


class _ToolsFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: list[FunctionOptions] = Field(default_factory=list)


def read_tools_file(path: Path) -> list[FunctionOptions]:
    """Return the entries of the file in order.

    Raises `Misconfigured` naming the file, and the key or line, when it is unreadable, is no YAML, has an unknown or
    wrong key, or lists one function twice.
    """
    try:
        content: Any = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path}: cannot be read as tool declarations: {error}") from error
    except yaml.YAMLError as error:
        raise Misconfigured(f"{path}: no valid YAML: {error}") from error
    try:
        entries = _ToolsFile.model_validate({} if content is None else content).tools
    except ValidationError as error:
        raise Misconfigured(f"{path}: {describe(error)}") from error
    seen: set[str] = set()
    for entry in entries:
        if entry.function in seen:
            raise Misconfigured(f"{path}: function {entry.function!r} is listed twice; merge the two entries")
        seen.add(entry.function)
    return entries

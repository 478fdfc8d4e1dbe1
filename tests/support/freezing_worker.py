"""`python -m tests.support.freezing_worker POOL …`: a worker whose models hold the interpreter in one of the stages.

`FAULT_STAGE` says in which: `plan`, or `respond`. What it is that computes there without end does not matter.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from planq.worker.__main__ import main
from planq.worker.models.gateway import ModelGateway
from tests.support.beating import hold


async def freeze(*_: Any, **__: Any) -> None:
    """Answer nothing, for ever."""
    hold()


if __name__ == "__main__":
    setattr(ModelGateway, os.environ["FAULT_STAGE"], freeze)
    sys.exit(main())

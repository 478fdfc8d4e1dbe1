"""The pages of batches."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from planq.api.callers import Who
from planq.api.deps import Use
from planq.api.page.frame.rendering import page
from planq.api.page.frame.route import page_router, seen, values_of
from planq.api.routes.batch_control import cancel_batch, pause_batch, resume_batch, retry_batch
from planq.api.routes.batches import get_batch, get_batches

batch_page_routes = page_router()

_MOST = 50
_SCALE = 1_000
_BARS = (("completed", "ok"), ("failed", "bad"), ("cancelled", "idle"), ("running", "run"))


@batch_page_routes.get("/ui/batches")
async def batches_page(request: Request, services: Use, who: Who) -> Response:
    """Show the newest batches."""
    listed = values_of(await get_batches(services, who, limit=_MOST))
    return page(request, "batches.html", batches=[{**one, "bars": _bars(one)} for one in listed["items"]])


@batch_page_routes.get("/ui/batches/{batch_id}")
async def batch_page(request: Request, batch_id: str, services: Use, who: Who) -> Response:
    """Show a batch."""
    batch = values_of(await get_batch(batch_id, services, who))
    return page(request, "batch.html", batch=batch, bars=_bars(batch), is_over=batch["finished_at"] is not None)


@batch_page_routes.post("/ui/batches/{batch_id}/cancel")
async def post_cancel_of_batch(batch_id: str, services: Use, who: Who) -> Response:
    """Cancel a batch."""
    await cancel_batch(batch_id, services, who)
    return seen(f"/batches/{batch_id}")


@batch_page_routes.post("/ui/batches/{batch_id}/pause")
async def post_pause_of_batch(batch_id: str, services: Use, who: Who) -> Response:
    """Let no more lines of a batch in."""
    await pause_batch(batch_id, services, who)
    return seen(f"/batches/{batch_id}")


@batch_page_routes.post("/ui/batches/{batch_id}/resume")
async def post_resume_of_batch(batch_id: str, services: Use, who: Who) -> Response:
    """Let a paused batch go on."""
    await resume_batch(batch_id, services, who)
    return seen(f"/batches/{batch_id}")


@batch_page_routes.post("/ui/batches/{batch_id}/retry")
async def post_retry_of_batch(batch_id: str, services: Use, who: Who) -> Response:
    """Try the lines of a batch again that have failed."""
    await retry_batch(batch_id, services, who)
    return seen(f"/batches/{batch_id}")


def _bars(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of the bar that shows how far a batch is, in thousandths of its lines."""
    counts, at, bars = batch["counts"], 0.0, []
    for name, kind in _BARS:
        width = _SCALE * counts[name] / max(counts["total"], 1)
        bars.append({"kind": kind, "x": round(at, 1), "width": round(width, 1)})
        at += width
    return [bar for bar in bars if bar["width"]]

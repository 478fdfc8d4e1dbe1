"""`update_user_metadata`: what is kept of a user, changed by a JSON merge patch (RFC 7396)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from shared.domain.errors import InvalidArguments
from shared.domain.schemas import is_deeper_than
from shared.domain.states import Effect
from shared.ports import ToolContext
from worker.tools.builtin.kept import check_size, storable_json
from worker.tools.declare import tool
from worker.tools.services import ToolServices

MAX_BYTES = 32 * 1024
MAX_LEVELS = 10


class Updated(TypedDict):
    """What is kept of the user now."""

    status: Literal["success"]
    user_id: str
    metadata: Annotated[dict[str, Any], Field(description="Everything that is kept now.")]


@tool(effect=Effect.IDEMPOTENT, timeout_seconds=30)
async def update_user_metadata(
    metadata: Annotated[
        dict[str, Any],
        Field(
            description="A JSON merge patch: given keys replace the kept ones, objects are merged key by key, null "
            "removes a key. An empty object changes nothing and shows what is kept."
        ),
    ],
    context: ToolContext,
    services: ToolServices,
) -> Updated:
    """Remember facts about the user (preferences, relations, interests), and return all that is kept (32 kB)."""
    patch = storable_json(metadata)
    if is_deeper_than(patch, MAX_LEVELS):
        raise InvalidArguments(f"update_user_metadata: expected at most {MAX_LEVELS} levels, found more")

    def change(present: Mapping[str, Any]) -> Mapping[str, Any]:
        merged: dict[str, Any] = merge_patch(present, patch)
        check_size("update_user_metadata: all that would be kept", merged, MAX_BYTES)
        return merged

    kept = await services.memory.change_user(context.tenant_id, context.user_id, change)
    return {"status": "success", "user_id": context.user_id, "metadata": dict(kept)}


def merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` changed by `patch`, which is not changed itself. Source: RFC 7396, section 2."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged

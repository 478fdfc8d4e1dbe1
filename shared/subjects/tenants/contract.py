"""Tenants as the engine and the API know them: what an operator has said of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planq.shared.kernel.limits import Limits
from planq.shared.subjects.tenants.config import TenantConfig


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant; `limits` are those of its jobs that ask for none: the server's, and its own in their place.

    `message_limits` are those of the jobs that its messages become; they are here so that no message works them out.
    """

    id: str
    name: str
    is_disabled: bool
    config: TenantConfig
    limits: Limits
    message_limits: Limits


class Tenants(Protocol):
    """The tenants, as they are or were at most a second ago."""

    async def of(self, tenant_id: str) -> Tenant:
        """Return a tenant; raises `NotFound`, and `DatabaseUnavailable` where it is not known from a moment ago."""
        ...

"""All pages, in the order in which a request is compared with them."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from planq.api.page.administration.costs import cost_page_routes
from planq.api.page.administration.tenants import tenant_page_routes
from planq.api.page.batches.pages import batch_page_routes
from planq.api.page.catalogue.pages import catalogue_page_routes
from planq.api.page.jobs.actions import action_page_routes
from planq.api.page.jobs.acts import act_routes
from planq.api.page.jobs.artifacts import artifact_page_routes
from planq.api.page.jobs.below import below_routes
from planq.api.page.jobs.forking import fork_routes
from planq.api.page.jobs.job import job_page_routes
from planq.api.page.jobs.listing import list_routes
from planq.api.page.manual.routes import manual_routes
from planq.api.page.operations.insights import insight_page_routes
from planq.api.page.operations.pages import operation_page_routes
from planq.api.page.operations.webhooks import webhook_page_routes
from planq.api.page.operations.workers import worker_page_routes
from planq.api.page.talks.chat import chat_routes
from planq.api.page.talks.conversations import conversation_page_routes
from planq.api.page.talks.inbox import inbox_routes
from planq.api.page.visits.routes import visit_routes

PAGE_ROUTERS: Sequence[APIRouter] = (
    *(visit_routes, list_routes, job_page_routes, act_routes, fork_routes, below_routes, artifact_page_routes),
    *(chat_routes, conversation_page_routes, webhook_page_routes, worker_page_routes, action_page_routes),
    *(inbox_routes, batch_page_routes, catalogue_page_routes, operation_page_routes),
    *(insight_page_routes, cost_page_routes, tenant_page_routes, manual_routes),
)

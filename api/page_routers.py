"""All pages, in the order in which a request is compared with them."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from planq.api.actions.page import action_page_routes
from planq.api.batches.page import batch_page_routes
from planq.api.conversations.page.chat import chat_routes
from planq.api.conversations.page.conversations import conversation_page_routes
from planq.api.costs.page import cost_page_routes
from planq.api.insights.page import insight_page_routes
from planq.api.jobs.page.acts import act_routes
from planq.api.jobs.page.artifacts import artifact_page_routes
from planq.api.jobs.page.below import below_routes
from planq.api.jobs.page.forking import fork_routes
from planq.api.jobs.page.job import job_page_routes
from planq.api.jobs.page.listing import list_routes
from planq.api.manual.page import manual_routes
from planq.api.operations.page import worker_page_routes
from planq.api.page.visits import visit_routes
from planq.api.questions.page import inbox_routes
from planq.api.schedules.page import operation_page_routes
from planq.api.tenants.page import tenant_page_routes
from planq.api.tools.page import catalogue_page_routes
from planq.api.webhooks.page import webhook_page_routes

PAGE_ROUTERS: Sequence[APIRouter] = (
    *(visit_routes, list_routes, job_page_routes, act_routes, fork_routes, below_routes, artifact_page_routes),
    *(chat_routes, conversation_page_routes, webhook_page_routes, worker_page_routes, action_page_routes),
    *(inbox_routes, batch_page_routes, catalogue_page_routes, operation_page_routes),
    *(insight_page_routes, cost_page_routes, tenant_page_routes, manual_routes),
)

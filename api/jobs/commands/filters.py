"""Which jobs a command means: the options by which `planq jobs` and `planq act` select them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planq.shared.kernel.states import JobStatus, Priority, Strategy

OnlyStatus = Annotated[JobStatus | None, typer.Option(help="Only jobs in this state.", show_default=False)]
OnlyStrategy = Annotated[Strategy | None, typer.Option(help="Only jobs with this strategy.", show_default=False)]
OnlyPriority = Annotated[Priority | None, typer.Option(help="Only jobs with this priority.", show_default=False)]
OnlyAgent = Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this agent.")]
OnlyBatch = Annotated[str | None, typer.Option(metavar="ID", help="Only jobs of this batch.")]
OnlyWords = Annotated[str | None, typer.Option(help="Only jobs in whose input this stands.")]
OnlyMetadata = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Only jobs with this in their metadata, as a text, number, true, false or null; repeatable.",
    ),
]
OlderThan = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0, help="Only jobs that were submitted before then.")
]
NewerThan = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0, help="Only jobs that were submitted since then.")
]
OnlyBefore = Annotated[str | None, typer.Option(metavar="TIME", help="Only jobs submitted before this.")]
OnlyAfter = Annotated[str | None, typer.Option(metavar="TIME", help="Only jobs submitted since this.")]
MinCost = Annotated[float | None, typer.Option(metavar="USD", min=0, help="Only jobs that have cost so much.")]


def job_filter(
    *,
    status: JobStatus | None,
    strategy: Strategy | None,
    priority: Priority | None,
    agent: str | None,
    batch: str | None,
    words: str | None,
    metadata: list[str] | None,
    older_than: float | None,
    newer_than: float | None,
    before: str | None,
    after: str | None,
    min_cost: float | None,
) -> dict[str, Any]:
    """Return the fields of the API's filter that are given; raises `typer.BadParameter` for metadata without `=`."""
    from planq.api.cli.inputs import pairs_of

    fields = {
        "status": status and status.value,
        "strategy": strategy and strategy.value,
        "priority": priority and priority.value,
        "agent": agent,
        "batch_id": batch,
        "words": words,
        "metadata": dict(pairs_of(metadata, "--metadata")) if metadata else None,
        "older_than_seconds": older_than,
        "newer_than_seconds": newer_than,
        "created_before": before,
        "created_after": after,
        "min_cost_usd": min_cost,
    }
    return {name: value for name, value in fields.items() if value is not None}

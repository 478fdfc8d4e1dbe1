"""`planq submit`: hands a request, a plan or an agent's work to planq, and tells how it goes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planq.api.cli.connection import AsJson, CommandClient, api_command
from planq.api.cli.console import err, out, print_json
from planq.api.cli.outcome import INCOMPLETE, INTERRUPTED, NOT_OK, OK, PARTIAL, end
from planq.shared.kernel.states import JobStatus, Outcome, Priority, Respond

LONG_POLL_SECONDS = 20.0
_CODES = {Outcome.PARTIAL: PARTIAL, Outcome.INCOMPLETE: INCOMPLETE, Outcome.FAILED: NOT_OK, Outcome.CANCELLED: NOT_OK}

_Limits = Annotated[
    list[str] | None, typer.Option(metavar="NAME=NUMBER", help="A lower bound for this job; repeatable.")
]
_Action = Annotated[str | None, typer.Option(help="One of the agent's actions; the text may then be left out.")]
_With = Annotated[
    str | None, typer.Option("--with", metavar="JSON|@FILE", help="What the agent is given to work on.")
]
_Metadata = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Kept with the job; repeatable.")]
_Key = Annotated[str | None, typer.Option(help="Submitting again with the same key gives the same job.")]
_Strategy = Annotated[
    str | None,
    typer.Option(
        metavar="plan|loop|react|guided", help="Who makes the next plan; the agent's own by default, else plan."
    ),
]
_Callback = Annotated[
    str | None, typer.Option("--callback-url", metavar="URL", help="Where its end is told, by a signed webhook.")
]
_Priority = Annotated[
    Priority | None,
    typer.Option(help="bulk: nobody waits for it, and it gives way to the others.", show_default=False),
]
_Respond = Annotated[
    Respond | None,
    typer.Option(
        help="What it answers with: a text of the model, or the output of the last step (the default with --plan).",
        show_default=False,
    ),
]
_Loop = Annotated[
    str | None, typer.Option(metavar="FILE|-", help="How its rounds are made: a loop block, YAML or JSON.")
]
_Context = Annotated[
    str | None,
    typer.Option(metavar="TEXT|@FILE|@-", help="What the planner and the answer are told beside the text, as data."),
]
_Prompt = Annotated[
    str | None, typer.Option(metavar="FILE", help="The template that asks for the next plan; wins over the block's.")
]
_Policy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOOL=auto|ask|deny", help="Whether a tool is called; names may have *, ask:operator. Repeatable."
    ),
]
_Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--model-setting",
        metavar="NAME=VALUE",
        help="A setting of its model calls, as in temperature=0.2; JSON where it is no text. Repeatable.",
    ),
]
_OnIncomplete = Annotated[
    str | None,
    typer.Option(
        metavar="accept|continue|fail",
        help="An answer that was cut off: take it, let one more call continue it, or fail.",
    ),
]
_Attach = Annotated[
    list[str] | None,
    typer.Option(metavar="FILE|URL", help="An image, a file or audio that the model is shown; repeatable."),
]
_Tools = Annotated[str | None, typer.Option(metavar="NAME,NAME", help="The same as --tool, all in one.")]
_Budget = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="What it and all jobs below it may use up together, as in max_tokens=50000; repeatable.",
    ),
]


@api_command
def submit(
    client: CommandClient,
    text: Annotated[
        str | None, typer.Argument(help="What is asked; - reads it from standard input.", show_default=False)
    ] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Run this plan as it is (JSON or YAML), no planning call.")
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="The agent that does it.")] = None,
    action: _Action = None,
    with_: _With = None,
    context: _Context = None,
    attach: _Attach = None,
    model: Annotated[str | None, typer.Option(help="offline, or provider:model; else the server's own.")] = None,
    model_setting: _Settings = None,
    on_incomplete: _OnIncomplete = None,
    tool: Annotated[
        list[str] | None, typer.Option(help="A tool that the job may use; repeatable. All by default.")
    ] = None,
    tools: _Tools = None,
    strategy: _Strategy = None,
    priority: _Priority = None,
    respond: _Respond = None,
    loop: _Loop = None,
    prompt_template: _Prompt = None,
    policy: _Policy = None,
    user: Annotated[str | None, typer.Option(help="Whose job it is: tools keep what they learn for this id.")] = None,
    limit: _Limits = None,
    budget: _Budget = None,
    metadata: _Metadata = None,
    callback_url: _Callback = None,
    idempotency_key: _Key = None,
    wait: Annotated[bool, typer.Option(help="Tell its progress and wait for its end.")] = True,
    as_json: AsJson = False,
) -> None:
    """Submit a job and follow it to its answer.

    Exit code 1 when the job fails, 3 when it is partial, or answers with the output of a plan of agents that says
    `success: false`. With --no-wait it prints the job's id and returns at once.
    """
    _require_one_input(text, plan, loop, *(given and given.removeprefix("@") for given in (with_, context)))
    body = {
        **_asked(text, plan, is_complete=bool(attach) or (agent is not None and action is not None)),
        **_given({"agent": agent, "action": action, "model": model, "user": user}, with_),
        **_told(context),
        **({"attachments": attach} if attach else {}),
        **_given({"strategy": strategy, "priority": priority, "respond": respond}, None),
        **_given({"callback_url": callback_url, "on_incomplete": on_incomplete}, None),
        **_model_settings(model_setting),
        **_bounds([*(tool or ()), *_names(tools)], limit, budget, metadata),
        **_rounds(loop, prompt_template, policy),
    }
    job = client.submit(body, idempotency_key=idempotency_key)
    if not wait:
        show_submitted(job, as_json=as_json)
        return
    watch_job(client, job, as_json=as_json)


def show_submitted(job: dict[str, Any], *, as_json: bool) -> None:
    """Print a job that was just accepted: its id, ready for a script."""
    if as_json:
        print_json(job)
    else:
        out.print(job["id"])
        err.print(f"submitted; `planq status {job['id']} --wait` follows it", style="dim")


def watch_job(client: Any, job: dict[str, Any], *, as_json: bool) -> None:
    """Follow a job to its end, print it, and end with the exit code of its outcome.

    Progress goes to standard error, the answer to standard output; as JSON nothing but the finished job is printed.
    """
    from planq.api.jobs.commands.progress import follow_job, print_outcome

    try:
        if as_json:
            while not JobStatus(job["status"]).is_terminal:
                job = client.job(job["id"], wait=LONG_POLL_SECONDS)
            print_json(job)
        else:
            err.print(f"job {job['id']}")
            job = follow_job(client, job["id"], err)
            print_outcome(job, out)
    except KeyboardInterrupt:
        err.print(f"\njob {job['id']} goes on; `planq status {job['id']} --wait` follows it, `planq cancel` ends it")
        end(INTERRUPTED)
    end(code_of(job))


def code_of(job: dict[str, Any]) -> int:
    """Return the exit code that a job's outcome stands for; one that runs is fine.

    Where a job answers with the output of a plan of agents, it is that plan which was asked for: one that did not
    succeed makes the job partial here, though every step of its own did.
    """
    from planq.shared.client.facts import outcome_of, says_no_success

    code = _CODES.get(Outcome(found), OK) if (found := outcome_of(job)) else OK
    return PARTIAL if found == Outcome.SUCCEEDED and says_no_success(job) else code


def _asked(text: str | None, plan: str | None, *, is_complete: bool) -> dict[str, Any]:
    from planq.api.cli.inputs import STANDARD_INPUT, read_plan_file, read_text

    if text is None and plan is None and not is_complete:
        raise typer.BadParameter("expected a text that says what to do, --plan, --attach, or --agent with --action")
    body: dict[str, Any] = {}
    if text is not None:
        body["input"] = read_text(STANDARD_INPUT, "the text") if text == STANDARD_INPUT else text
    if plan is not None:
        body["plan"] = read_plan_file(plan).value
    return body


def _require_one_input(*places: str | None) -> None:
    if places.count("-") > 1:
        message = "two of the text, the plan, the loop, --with and --context cannot both come from standard input"
        raise typer.BadParameter(message)


def _given(names: dict[str, str | None], with_: str | None) -> dict[str, Any]:
    from planq.api.cli.inputs import json_or_file

    body: dict[str, Any] = {name: value for name, value in names.items() if value is not None}
    if with_ is not None:
        body["with"] = json_or_file(with_, "--with")
    return body


def _told(context: str | None) -> dict[str, str]:
    from planq.api.cli.inputs import read_text

    if context is None:
        return {}
    return {"context": read_text(context[1:], "--context") if context.startswith("@") else context}


def _names(tools: str | None) -> list[str]:
    return [name.strip() for name in (tools or "").split(",") if name.strip()]


def _model_settings(given: list[str] | None) -> dict[str, Any]:
    from planq.api.cli.inputs import pairs_of
    from planq.shared.platform.values.decoding import decode

    settings: dict[str, Any] = {}
    for name, value in pairs_of(given or (), "--model-setting"):
        try:
            settings[name] = decode(value)
        except ValueError:
            settings[name] = value
    return {"model_settings": settings} if settings else {}


def _rounds(loop: str | None, prompt_template: str | None, policy: list[str] | None) -> dict[str, Any]:
    from planq.api.cli.inputs import pairs_of
    from planq.api.jobs.commands.loops import read_loop_file, read_prompt_file

    block = {} if loop is None else read_loop_file(loop)
    if prompt_template is not None:
        block = {**block, "prompt": read_prompt_file(prompt_template)}
    if policy:
        block = {**block, "policy": {**block.get("policy", {}), **dict(pairs_of(policy, "--policy"))}}
    return {"loop": block} if block else {}


def _bounds(
    tools: list[str] | None, limits: list[str] | None, budget: list[str] | None, metadata: list[str] | None
) -> dict[str, Any]:
    from planq.api.cli.inputs import budget_of, number, pairs_of

    body: dict[str, Any] = {}
    if tools:
        body["tools"] = tools
    if limits:
        body["limits"] = {name: number(name, value, "--limit") for name, value in pairs_of(limits, "--limit")}
    if budget:
        body["limits"] = {**body.get("limits", {}), "budget": budget_of(budget)}
    if metadata:
        body["metadata"] = dict(pairs_of(metadata, "--metadata"))
    return body

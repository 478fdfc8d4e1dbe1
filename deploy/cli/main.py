"""The command `planq`. `COMMANDS` lists all commands; their heavy imports happen inside them.

`planq --help` must stay fast, and `planq up` small: nothing here imports Celery, FastAPI, SQLAlchemy or a model SDK.
"""

from __future__ import annotations

import errno
import io
import select
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, NoReturn, TextIO

import typer

from planq.api.actions import commands as actions
from planq.api.agents import commands as agents
from planq.api.batches import commands as batches
from planq.api.cli.console import discard, err, out
from planq.api.cli.outcome import CANNOT, NOT_OK, OK, exit_code, report
from planq.api.conversations import commands as conversations
from planq.api.costs import commands as costs
from planq.api.insights import commands as insights
from planq.api.jobs.commands import control, loops, status, submit
from planq.api.jobs.commands import watch as events
from planq.api.questions import commands as questions
from planq.api.schedules import commands as schedules
from planq.api.tools import commands as catalogue
from planq.api.webhooks import commands as webhooks
from planq.deploy.cli import (
    cassettes,
    channels,
    dead_letters,
    doctor,
    keys,
    knowledge,
    manual,
    models,
    processes,
    retention,
    secrets,
    telegram,
    tenants,
)
from planq.deploy.local import sample, up
from planq.shared.platform.errors import PlanqError

Command = Callable[..., None]

COMMANDS: Mapping[str, Command | tuple[str, Mapping[str, Command]]] = {
    "up": up.up,
    "submit": submit.submit,
    "loops": (
        "Check loop blocks, and import workflows as such.",
        {"check": loops.check_loop, "import": loops.import_loop},
    ),
    "status": status.status,
    "output": status.output,
    "traceback": status.traceback,
    "jobs": status.jobs,
    "find": status.find_by_id,
    "artifacts": status.artifacts,
    "artifact": status.artifact,
    "watch": events.watch,
    "logs": events.logs,
    "cancel": control.cancel,
    "pause": control.pause,
    "resume": control.resume,
    "fork": control.fork,
    "settle": control.settle,
    "validate": catalogue.validate,
    "tools": catalogue.tools,
    "agents": (
        "Store, list, show and delete agents and skills.",
        {
            "apply": agents.apply_documents,
            "list": agents.show_documents,
            "show": agents.show_document,
            "delete": agents.retire_documents,
        },
    ),
    "act": actions.act,
    "inbox": questions.inbox,
    "answer": questions.answer,
    "insights": (
        "Insights from earlier jobs: list, pin, retire, report.",
        {
            "list": insights.show_insights,
            "show": insights.show_insight,
            "pin": insights.pin_insights,
            "retire": insights.retire_insights,
            "report": insights.report_insights,
        },
    ),
    "schedules": (
        "List and delete reminders.",
        {"list": schedules.show_schedules, "delete": schedules.delete_schedules},
    ),
    "batch": (
        "Run many requests of one file.",
        {
            "submit": batches.send_file,
            "status": batches.show_status,
            "watch": batches.watch_batch,
            "results": batches.print_results,
            "errors": batches.print_errors,
            "retry": batches.ask_retry,
            "cancel": batches.ask_cancel,
            "pause": batches.ask_pause,
            "resume": batches.ask_resume,
            "list": batches.show_batches,
        },
    ),
    "chat": conversations.chat,
    "conversations": (
        "List and show conversations.",
        {"list": conversations.show_conversations, "show": conversations.show_conversation},
    ),
    "endpoints": (
        "Endpoints of webhooks: list, add, update, test.",
        {
            "list": webhooks.show_endpoints,
            "add": webhooks.add_endpoint,
            "update": webhooks.update_endpoint,
            "remove": webhooks.remove_endpoint,
            "rotate": webhooks.rotate_endpoint_secret,
            "test": webhooks.try_endpoint,
            "callback-secret": webhooks.show_callback_secret,
            "inbound-secret": webhooks.show_inbound_secret,
        },
    ),
    "deliveries": (
        "Deliveries of webhooks: list, retry.",
        {"list": webhooks.show_deliveries, "retry": webhooks.retry_deliveries},
    ),
    "costs": costs.show_costs,
    "knowledge": (
        "Load and search documents.",
        {"load": knowledge.load_documents, "search": knowledge.search_documents},
    ),
    "models": (
        "Models: capabilities of their servers.",
        {"list": models.list_models, "check": models.check_model, "forget": models.forget_models},
    ),
    "record": cassettes.record,
    "replay": cassettes.replay,
    "doctor": doctor.doctor,
    "dead-letters": (
        "Messages that are not wake-ups: list, drop.",
        {"list": dead_letters.list_letters, "drop": dead_letters.drop},
    ),
    "retention": retention.retention,
    "tenants": (
        "Tenants: create, configure, disable.",
        {
            "create": tenants.create_tenant,
            "list": tenants.list_tenants,
            "show": tenants.show_tenant,
            "set": tenants.set_tenant,
            "disable": tenants.disable_tenant,
            "enable": tenants.enable_tenant,
        },
    ),
    "channels": (
        "Channels whose replies are sent: connect, list, disconnect.",
        {
            "connect": channels.connect_channel,
            "list": channels.list_channels,
            "disconnect": channels.disconnect_channel,
        },
    ),
    "telegram": (
        "A tenant's Telegram bot: set-webhook, info, delete, poll.",
        {
            "set-webhook": telegram.set_webhook,
            "info": telegram.show_webhook,
            "delete": telegram.delete_webhook,
            "poll": telegram.poll_updates,
        },
    ),
    "keys": (
        "API keys of tenants: create, list, revoke.",
        {"create": keys.create_key, "list": keys.list_keys, "revoke": keys.revoke_key},
    ),
    "secrets": (
        "Secrets of tenants: set, list, remove, rotate.",
        {
            "set": secrets.set_secret,
            "list": secrets.list_secrets,
            "remove": secrets.remove_secret,
            "rotate": secrets.rotate_secrets,
        },
    ),
    "api": processes.api,
    "worker": processes.worker,
    "migrate": processes.migrate,
    "flower": processes.flower,
    "sample": sample.sample,
    "docs": manual.search_manual,
}
"""Every command in the order of `planq --help`; a group has a summary and its own commands."""

_RUN_OTHERS = (cassettes.record, cassettes.replay)
"""The options after the name of a file are those of the command that these run."""


def show_version(wanted: bool) -> None:
    """Print version and commit, and end, where that is wanted."""
    if wanted:
        from planq.shared.platform.version import release

        out.print(f"planq {release()}")
        raise typer.Exit


def create_app() -> typer.Typer:
    """Return the command line application with every group of commands."""
    app = typer.Typer(
        name="planq",
        help="A durable backend for agentic jobs: plan, execute on Celery, answer.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich's help takes a third of the time that `planq --help` may take
    )
    app.callback()(planq)
    for name, one in COMMANDS.items():
        if isinstance(one, tuple):
            group = typer.Typer(name=name, help=one[0], no_args_is_help=True)
            for own_name, command in one[1].items():
                group.command(own_name)(command)
            app.add_typer(group)
        else:
            settings = {"allow_interspersed_args": False} if one in _RUN_OTHERS else None
            app.command(name, context_settings=settings)(one)
    return app


def planq(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """A durable backend for agentic jobs: plan, execute on Celery, answer."""


def main() -> None:
    """Run the command line; a deliberate error becomes one message and the exit code that `outcome` gives it.

    If the reader of the output goes away first, as `head` does, the command ends at once with exit code 0. If the
    output cannot be written (a full disk), it ends with exit code 2.
    """
    stdout = sys.stdout
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets its escape, not a crash in the middle of an answer.
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            create_app()()
        except PlanqError as error:
            report(error, as_json=False)
            sys.exit(exit_code(error))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # what cannot be written fails here, where it is reported, not at Python's end
    except BrokenPipeError:
        _end_without_reader()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _end_unwritten(error)
    except SystemExit:
        if sys.stdout is stdout:
            _closed_streams()
            raise
        _end_without_reader()  # typer replaces the streams when it catches a broken pipe


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write to a full or broken disk. Commands report those of the files that they name themselves."""


def _end_unwritten(error: OSError) -> NoReturn:
    """End the process with exit code 2 and say that the output is not whole. Drops what was not written."""
    discard(1)
    err.print(
        f"planq: cannot write the output: {error.strerror}; free some space, or write it elsewhere", style="red"
    )
    sys.exit(CANNOT)


def _end_without_reader() -> NoReturn:
    """End the process with exit code 0, or with 1 if only an error found no reader. Drops what was not written."""
    sys.exit(OK if sys.__stdout__ in _closed_streams() else NOT_OK)


def _closed_streams() -> list[TextIO]:
    """Return the output streams without a reader, and drop their buffers: a failed flush at exit means code 120."""
    found: list[TextIO] = []
    for number, stream in enumerate((sys.__stdout__, sys.__stderr__), 1):
        closed = select.poll()
        closed.register(number, 0)
        if stream is not None and closed.poll(0):
            discard(number)
            found.append(stream)
    return found


if __name__ == "__main__":
    main()

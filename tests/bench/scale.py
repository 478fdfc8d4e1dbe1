"""`make bench ARGS=scale`: what more workers bring, on one machine and on several hosts, and what limits it.

Sleeping tools hold places and no core, so that two cores are enough to see whether throughput grows with the
workers: one of C places whose tools take T seconds can do C / T steps a second at most. The same is done with every
worker on a host of its own: a network namespace, from which it reaches PostgreSQL and Valkey by TCP over a switch and
nothing else. Then jobs that wait for nothing show how many of them the machine does, what one costs, and what 1 000
a second need.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from planq.deploy.local.child import spawn, stop, wait_ended
from planq.deploy.local.folder import last_lines
from tests.bench import machine
from tests.bench.context import Context
from tests.bench.figures import Figure
from tests.bench.scaling import network, runs
from tests.bench.scaling.host import network_of
from tests.bench.scaling.network import Network
from tests.bench.scaling.report import Outcome
from tests.bench.scaling.runs import Sizes
from tests.bench.scaling.usage import NOTHING_MEASURED, Ceilings, Usage

ROOT = Path(__file__).parents[2]
PARTS = ("processes", "hosts", "limit")
DEFAULTS = Sizes(workers=(1, 2, 4), concurrency=50, tool_seconds=1.0, steps=10, seconds=6.0)
"""Four workers do 200 steps a second then, which leaves two cores time to spare."""


_HOSTS_PATIENCE_SECONDS = 900.0
_STOP_PATIENCE_SECONDS = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the chosen parts and print; returns 1 when throughput did not grow with the workers."""
    command = parser()
    given = command.parse_args(arguments)
    if unknown := sorted(set(given.parts) - set(PARTS)):
        command.error(f"unknown part {', '.join(unknown)}; expected some of {', '.join(PARTS)}")
    sizes = sizes_of(given)
    # As Ctrl-C, which a running loop takes as the end of its work: what was started is stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    if given.inside is not None:
        ceilings, found = runs.sleeping(sizes, Network(given.inside))
        usages = {count: asdict(usage) for count, usage in found.items()}
        given.out.write_text(json.dumps({"ceilings": asdict(ceilings), "usages": usages}))
        return 0
    outcome = outcome_of(given.parts or PARTS, sizes)
    sys.stdout.write(printed(outcome, machine.describe(), as_json=given.json, as_markdown=given.markdown))
    return 0 if outcome.is_linear else 1


def outcome_of(parts: Sequence[str], sizes: Sizes) -> Outcome:
    """Measure parts of PARTS, one after the other: they would disturb one another."""
    sleeping: dict[str, dict[int, Usage]] = {}
    ceilings = NOTHING_MEASURED
    if "processes" in parts:
        ceilings, sleeping["here"] = runs.sleeping(sizes, None)
    no_hosts = network.missing() if "hosts" in parts else None
    if "hosts" in parts and no_hosts is None:
        ceilings, sleeping["on hosts"] = on_hosts(sizes)
    if "limit" not in parts:
        return Outcome(ceilings, sleeping, no_hosts)
    found = runs.limit(sizes)
    return Outcome(
        sleeping=sleeping, no_hosts=no_hosts, **{one.name: getattr(found, one.name) for one in fields(found)}
    )


def measure(context: Context) -> list[Figure]:
    """Return how throughput grew with the workers, for the table of all benchmarks; nothing in a quick run."""
    if context.quick:
        context.say("  left out of a quick run: it takes two minutes")
        return []
    outcome = outcome_of(("processes", "hosts"), DEFAULTS)
    if outcome.no_hosts is not None:
        context.say(f"  {_without_hosts(outcome.no_hosts)}")
    return outcome.figures()


def on_hosts(sizes: Sizes) -> tuple[Ceilings, dict[int, Usage]]:
    """Measure sleeping steps with every worker on a host of its own; `network.missing()` must have said None.

    It is this program again that does it, in a network of its own; it dies with this one, and its network with it.
    """
    with tempfile.TemporaryDirectory(prefix="planq-scale-") as folder:
        out, log = Path(folder) / "usage.json", Path(folder) / "log"
        program = ["-m", "tests.bench.scale", "--inside", network_of(), "--out", str(out), *as_arguments(sizes)]
        host = ["-m", "tests.bench.scaling.host", "--name", "planq-servers", "--"]
        with log.open("wb") as output:
            process = spawn([sys.executable, *host, *program], log=output, cwd=ROOT)
        try:
            wait_ended(process, _HOSTS_PATIENCE_SECONDS)
        finally:
            stop(process, (signal.SIGTERM, _STOP_PATIENCE_SECONDS))
        if not out.exists():
            raise RuntimeError(f"the measurement on hosts ended without a result:\n{last_lines(log, 40)}")
        found = json.loads(out.read_text())
    return Ceilings(**found["ceilings"]), {int(count): Usage(**usage) for count, usage in found["usages"].items()}


def printed(outcome: Outcome, about: Mapping[str, str], *, as_json: bool, as_markdown: bool) -> str:
    """Return the outcome, and what it was measured `about`, as text, as JSON, or as Markdown."""
    if as_json:
        return json.dumps({"about": about, **asdict(outcome)}, indent=2) + "\n"
    tables = [", ".join(f"{name} {value}" for name, value in about.items())]
    tables += [table.markdown() if as_markdown else table.text() for table in outcome.tables()]
    if outcome.no_hosts is not None:
        tables.append(_without_hosts(outcome.no_hosts))
    return "\n\n".join(tables) + "\n"


def _without_hosts(why: str) -> str:
    return f"Not measured on several hosts: {why}."


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    command = argparse.ArgumentParser(prog="make bench ARGS=scale", description=__doc__)
    command.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    command.add_argument("--workers", type=_counts, default=DEFAULTS.workers, help="numbers of workers, like 1,2,4")
    command.add_argument(
        "--concurrency", type=int, default=DEFAULTS.concurrency, help="places for steps in one worker"
    )
    command.add_argument("--tool-seconds", type=float, default=DEFAULTS.tool_seconds, help="how long a step sleeps")
    command.add_argument("--steps", type=int, default=DEFAULTS.steps, help="steps of a job that sleeps")
    command.add_argument("--seconds", type=float, default=DEFAULTS.seconds, help="how long each load is measured")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--markdown", action="store_true", help="print the tables of docs/benchmarks.md")
    command.add_argument("--inside", help=argparse.SUPPRESS)
    command.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return command


def sizes_of(given: argparse.Namespace) -> Sizes:
    """Return the sizes that a command line names."""
    return Sizes(given.workers, given.concurrency, given.tool_seconds, given.steps, given.seconds)


def as_arguments(sizes: Sizes) -> list[str]:
    """Return the command line that names these sizes."""
    return [
        *("--workers", ",".join(map(str, sizes.workers))),
        *("--concurrency", str(sizes.concurrency)),
        *("--tool-seconds", str(sizes.tool_seconds)),
        *("--steps", str(sizes.steps)),
        *("--seconds", str(sizes.seconds)),
    ]


def _counts(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())

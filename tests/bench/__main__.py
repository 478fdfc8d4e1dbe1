"""`make bench`: measures planq and its peers in one run, and prints each figure with what it is compared with.

    make bench                       everything; exit code 1 when a bound is missed
    make bench ARGS="--quick B1 B2"  fewer repetitions; only these
    make bench ARGS="--json"         one JSON document; ARGS="--markdown" the table of docs/benchmarks.md
    make bench ARGS="history …"      fills a database with a long history to look at; `history --help`
    make bench ARGS="scale …"        what more workers bring, and what a job costs; options of its own, `scale --help`

A measurement is a module with `measure(context) -> Iterable[Figure]`; it is imported when it is asked for. One that
makes several is called once, and asks `context.wants(name)` for each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from time import monotonic

from tests.bench import machine, table
from tests.bench.context import Context
from tests.bench.figures import Figure

MEASUREMENTS = {
    **dict.fromkeys(("B1r", "B2r", "B4r", "B1", "B1b", "B2", "B3", "B4"), "tests.bench.hot_path"),
    "B5": "tests.bench.waiting",
    "B6": "tests.bench.fan_in",
    "B7": "tests.bench.growth",
    "B8": "tests.bench.polling",
    "B9": "tests.bench.http_cost",
    "B10": "tests.bench.poll_storm",
    "B11": "tests.bench.footprint",
    "B12": "tests.bench.react",
    "B13": "tests.bench.children",
    "B14": "tests.bench.turns",
    "B15": "tests.bench.noisy_tenant",
    "B16": "tests.bench.inbound_cost",
    "B17": "tests.bench.event_streams",
    "B18": "tests.bench.flood",
    "B19": "tests.bench.batch_run",
    "B20": "tests.bench.batch_intake",
    "B21": "tests.bench.timers",
    "B22": "tests.bench.poison",
    "B23": "tests.bench.chats",
    "B24": "tests.bench.pages",
    "B25": "tests.bench.hostile",
    "B26": "tests.bench.shares",
    "B27": "tests.bench.history.measuring",
    "B28": "tests.bench.pooler",
    "B29": "tests.bench.insights",
    "B30": "tests.bench.lean_ratio",
    "B32": "tests.bench.stock_server",
    "startup": "tests.bench.startup",
    "walk": "tests.bench.walk",
    "storage": "tests.bench.storage",
    "scale": "tests.bench.scale",
}
"""Where each measurement is made; one after the other, as they would disturb one another."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen measurements (all by default) and print; returns 1 when a bound is missed or one failed."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["scale"]:
        from tests.bench import scale

        return scale.main(given[1:])
    if given[:1] == ["history"]:
        from tests.bench.history import making

        return making.main(given[1:])
    args = _parse(given)
    figures: list[Figure] = []
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="planq-bench-") as folder, _context(args, folder) as run:
        for module, names in _chosen(args.names).items():
            run.say(f"{', '.join(names)} …")
            begun = monotonic()
            try:
                for figure in import_module(module).measure(run):
                    figures.append(figure)  # one by one: what was measured before a failure counts
            except Exception as error:
                # The other measurements are still worth having.
                traceback.print_exc()
                failed[", ".join(names)] = f"{type(error).__name__}: {error}"[:1000]
            run.say(f"  {monotonic() - begun:.0f} s")
    _print(args, figures, failed, machine.describe() | run.about)
    return 0 if not failed and all(figure.is_good for figure in figures) else 1


def _context(args: argparse.Namespace, folder: str) -> Context:
    return Context(Path(folder), quick=args.quick, names=args.names)


def _chosen(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the modules to call, each with the measurements that are asked of it."""
    found: dict[str, list[str]] = {}
    for name, module in MEASUREMENTS.items():
        if not names or name in names:
            found.setdefault(module, []).append(name)
    return found


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and smaller loads: three minutes")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md shows it")
    args = parser.parse_args(arguments)
    known = {name.lower(): name for name in MEASUREMENTS}
    if unknown := sorted(name for name in args.names if name.lower() not in known):
        parser.error(f"unknown measurement {', '.join(unknown)}; expected one of {', '.join(MEASUREMENTS)}")
    args.names = [known[name.lower()] for name in args.names]
    return args


def _print(
    args: argparse.Namespace, figures: Sequence[Figure], failed: dict[str, str], about: dict[str, str]
) -> None:
    about |= {"run": "quick"} if args.quick else {}
    if args.json:
        found = {"about": about, "figures": [figure.to_json() for figure in figures], "failed": failed}
        print(json.dumps(found, indent=2))  # noqa: T201 - printing is the purpose
        return
    head = ", ".join(f"{name} {value}" for name, value in about.items())
    body = (table.markdown if args.markdown else table.text)(figures)
    tail = "".join(f"\n{name} FAILED: {why}" for name, why in failed.items())
    print(f"{head}\n\n{body}{tail}")  # noqa: T201 - printing is the purpose


if __name__ == "__main__":
    sys.exit(main())

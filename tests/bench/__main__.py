"""`make bench`: measures and prints; exit code 1 when a bound is missed. `--json` prints one JSON document."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable

from tests.bench import startup, storage
from tests.bench.figures import Figure

MEASUREMENTS: dict[str, Callable[[], list[Figure]]] = {"startup": startup.measure, "storage": storage.measure}


def main() -> int:
    """Run the chosen measurements (all by default), one after the other: they would disturb one another."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; default: all")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(MEASUREMENTS)):
        parser.error(f"unknown measurement {', '.join(unknown)}; expected one of {', '.join(MEASUREMENTS)}")
    figures: list[Figure] = []
    for name in args.names or MEASUREMENTS:
        found = MEASUREMENTS[name]()
        figures += found
        if not args.json:
            for figure in found:
                print(figure)  # noqa: T201 - printing is the purpose
    if args.json:
        document = {"cpus": os.cpu_count(), "figures": [figure.to_json() for figure in figures]}
        print(json.dumps(document, indent=2))  # noqa: T201 - printing is the purpose
    return 0 if all(figure.is_good for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())

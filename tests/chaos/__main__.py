"""`make chaos`: runs, prints, and exits with 1 when anything was lost, wrong, doubled, repeated, stuck or broken."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.audit import shown
from tests.chaos.run import Options, Report, Run


def main() -> int:
    """Parse the command line and run."""
    args = _parser().parse_args()
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1_000_000)
    options = Options(
        seconds=args.seconds,
        seed=seed,
        every=args.every,
        rate=args.rate,
        lease=args.lease,
        rolling_seconds=args.rolling_seconds if args.rolling else 0.0,
    )
    begun = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - begun:6.1f} s] {text}\n")
        sys.stdout.flush()

    say(f"seed {seed}: {args.seconds:g} s with a fault each {args.every:g} s, lease {args.lease:g} s")
    folder = Path(tempfile.mkdtemp(prefix="planq-chaos-"))
    report = None
    try:
        report = asyncio.run(_run(options, folder, say))
    finally:
        if args.keep or report is None or not report.is_good:
            say(f"logs and ledger are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(f"{_text(report)}\n")
    if args.report:
        args.report.write_text(json.dumps(report.to_json(), indent=2))
    return 0 if report.is_good else 1


async def _run(options: Options, folder: Path, say: object) -> Report:
    task = asyncio.current_task()
    assert task is not None
    # Told to stop, this process first stops what it has started.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await Run(options, folder, say).run()  # type: ignore[arg-type]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="of chaos; 0 for none (default 120)")
    parser.add_argument("--seed", type=int, help="of the schedule of faults and of the jobs; printed, else random")
    parser.add_argument("--every", type=float, default=2, help="seconds between two faults (default 2)")
    parser.add_argument("--rate", type=float, default=4, help="jobs a second (default 4)")
    parser.add_argument("--lease", type=float, default=15, help="seconds; the heartbeat is a third (default 15)")
    parser.add_argument("--rolling", action="store_true", help="a graceful rolling restart under load afterwards")
    parser.add_argument("--rolling-seconds", type=float, default=20, help="of it, and at least one turn (default 20)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--keep", action="store_true", help="keep logs and ledger also when all is well")
    return parser


def _text(report: Report) -> str:
    lines = [str(dealt) for dealt in report.dealt]
    lines += [shown(phase) for phase in report.phases]
    lines.append("memory (resident)      processes   peak MB   last MB   slope MB/min over")
    for one in report.memory:
        slope = "too short" if one.slope_mb_per_minute is None else f"{one.slope_mb_per_minute:+.2f}"
        lines.append(
            f"  {one.name:<20} {one.processes:>9} {one.peak_mb:>9.1f} {one.last_mb:>9.1f}   {slope:>9}"
            f" {one.seen_seconds:>6.0f} s"
        )
    unforeseen = ", ".join(f"{e.name} with {e.code} after {e.lived_seconds:g} s" for e in report.unforeseen_ends)
    lines.append(f"processes ended {len(report.ends)} times; of themselves: {unforeseen or 'none'}")
    lines.append(f"seed {report.options.seed}: {'good' if report.is_good else 'NOT GOOD'}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

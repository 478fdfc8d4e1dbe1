"""The table that `make bench` prints: a row for each figure, in plain text or in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.bench.figures import BEST, Figure

PEERS = ("Celery", "LangGraph", "DBOS")
HEAD = ("workload", "planq", *PEERS, "of the best peer", "compared with, in the same run", "must be", "", "hoped for")
OK, MISSED = "ok", "MISSED"


def number(value: float) -> str:
    """Return a figure with three significant digits, and no more of them than say something."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def row(figure: Figure, mark: str = "") -> tuple[str, ...]:
    """Return the cells of a figure's row; `mark` is that of its footnote."""
    best = figure.ratio(BEST)
    others = {**figure.limits, **{name: value for name, value in figure.peers.items() if name not in PEERS}}
    bounds = ", ".join(f"{bound}{'' if figure.keeps(bound) else ' ✗'}" for bound in figure.all_bounds)
    return (
        f"{figure.name}{mark}",
        f"{number(figure.value)} {figure.unit}",
        *(number(figure.peers[name]) if name in figure.peers else "" for name in PEERS),
        "" if best is None else f"{number(best)} ×",
        ", ".join(f"{name} {number(value)} ({_times(figure, name)})" for name, value in others.items()),
        bounds,
        (OK if figure.is_good else MISSED) if figure.all_bounds else "",
        ", ".join(f"{hope}{' ✓' if figure.keeps(hope) else ''}" for hope in figure.hopes),
    )


def _times(figure: Figure, name: str) -> str:
    ratio = figure.ratio(name)
    return "–" if ratio is None else f"{number(ratio)} ×"


def rows(figures: Iterable[Figure]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the rows of all figures and the footnotes; figures with the same note share it."""
    notes: list[str] = []
    found = []
    for figure in figures:
        if figure.note and figure.note not in notes:
            notes.append(figure.note)
        mark = f" [{notes.index(figure.note) + 1}]" if figure.note else ""
        found.append(row(figure, mark))
    return found, [f"[{place}] {note}" for place, note in enumerate(notes, 1)]


def text(figures: Iterable[Figure]) -> str:
    """Return the table for a terminal."""
    body, notes = rows(figures)
    lines = [HEAD, *body]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    used = [column for column in range(len(HEAD)) if any(line[column] for line in body)]
    printed = ["  ".join(line[column].ljust(widths[column]) for column in used).rstrip() for line in lines]
    return "\n".join([*printed, *notes])


def markdown(figures: Iterable[Figure]) -> str:
    """Return the table as docs/benchmarks.md shows it."""
    body, notes = rows(figures)
    lines = [_line(HEAD), _line(["---"] * len(HEAD)), *(_line(cells) for cells in body)]
    return "\n".join([*lines, "", *(f"{note}  " for note in notes)]).rstrip()


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"

"""The manual (README and the pages of docs/, of a clone or a wheel) and a search over its sections.

Sections are ranked by the words that they share with the question (BM25, Robertson 1994); rare words and words of
headings count more.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

INSTALLED = Path(__file__).resolve().parent / "pages"
"""A wheel has the pages here, in one folder (`planq.deploy.wheel`)."""

_SATURATION, _BY_LENGTH = 1.2, 0.6
"""Parameters of BM25: k1, how soon more occurrences stop counting, and b, how much long sections lose."""

_IN_HEADING, _IN_TITLE = 4, 2
"""How many times a word in a section's heading, or in a page's title, counts."""

_OF_HEADING = 1.5
"""Factor of a heading that has only words of the query; a heading with other words gets a part of it."""

_BY_NATURE: Sequence[tuple[re.Pattern[str], float]] = (
    (re.compile(r"docs/(decisions|comparison|benchmarks)\.md"), 0.5),
    (re.compile(r"docs/(http-(?!api)\w+|cli|settings|scopes|architecture)\.md"), 0.7),
    (re.compile(r"docs/troubleshooting\.md"), 1.2),
)
"""Factors of kinds of pages: readers look for instructions before field lists and reasons."""

_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and any are as at be by can do does for from have how i if in is it me my not of on one or planq so "
        "that the their them there they this to was what when where which who why will with you your",
    )
)
_EXCERPT_CHARS = 240


@dataclass(frozen=True, slots=True)
class ManualSection:
    """A part of a page under one heading, up to the next heading."""

    page: str
    title: str
    heading: str
    anchor: str
    text: str


@dataclass(frozen=True, slots=True)
class ManualHit:
    """A section that was found, and its best part."""

    place: str
    title: str
    excerpt: str
    score: float


def search_pages(pages: Mapping[str, str], words: str, *, limit: int = 5) -> list[ManualHit]:
    """Return the sections that fit the words, best first."""
    sections, counted = _read(tuple(pages.items()))
    asked = list(dict.fromkeys(terms(words)))
    rarity = {term: _rarity(sum(term in one for one in counted), len(counted)) for term in asked}
    usual = sum(one.total() for one in counted) / max(len(counted), 1)
    scored = []
    for section, counts in zip(sections, counted, strict=True):
        length = _SATURATION * (1 - _BY_LENGTH + _BY_LENGTH * counts.total() / usual)
        score = sum(rarity[term] * counts[term] * (_SATURATION + 1) / (counts[term] + length) for term in asked)
        named = set(terms(section.heading))
        score += sum(rarity[term] * _OF_HEADING / len(named) for term in asked if term in named)
        if score > 0:
            scored.append((score * _weight(section.page), section))
    scored.sort(key=lambda one: -one[0])
    return [_shown(section, score, asked) for score, section in scored[:limit]]


@lru_cache(maxsize=1)  # a manual stays as it is, and to count its words takes ten times what a search does
def _read(pages: Sequence[tuple[str, str]]) -> tuple[Sequence[ManualSection], Sequence[Counter[str]]]:
    sections = [section for name, text in pages for section in sections_of(name, text)]
    return sections, [_counted(section) for section in sections]


def sections_of(name: str, text: str) -> Iterable[ManualSection]:
    """Yield the sections of a page in order; headings in code blocks do not count."""
    title, heading, lines, is_code = "", "", list[str](), False
    for line in text.splitlines():
        is_code ^= line.startswith("```")
        found = None if is_code else re.match(r"#{1,4} (.+)", line)
        if found is None:
            lines.append(line)
            continue
        if heading:
            yield _section(name, title, heading, lines)
        heading, lines = found[1], []
        title = title or heading
    if heading:
        yield _section(name, title, heading, lines)


def _section(name: str, title: str, heading: str, lines: Sequence[str]) -> ManualSection:
    return ManualSection(name, title, heading.replace("`", ""), anchor_of(heading), "\n".join(lines).strip())


def anchor_of(heading: str) -> str:
    """Return a heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def without_links(text: str) -> str:
    return re.sub(r"\[([^\[\]]*)\]\([^()]*\)", r"\1", text)


def terms(text: str) -> list[str]:
    """Return the words of a text to search for, without their endings."""
    return [_stem(word) for word in re.findall(r"\w+", text.lower()) if word not in _COMMON]


def _stem(word: str) -> str:
    for ending, instead in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not (ending == "s" and word.endswith("ss")):
            return word.removesuffix(ending) + instead
    return word


def _counted(section: ManualSection) -> Counter[str]:
    counts = Counter(terms(section.text))
    for text, times in ((section.heading, _IN_HEADING), (section.title, _IN_TITLE)):
        for term in terms(text):
            counts[term] += times
    return counts


def _rarity(having: int, of: int) -> float:
    return math.log(1 + (of - having + 0.5) / (having + 0.5))


def _weight(page: str) -> float:
    return next((weight for pattern, weight in _BY_NATURE if pattern.fullmatch(page)), 1.0)


def _shown(section: ManualSection, score: float, asked: Iterable[str]) -> ManualHit:
    title = section.title if section.heading == section.title else f"{section.title}: {section.heading}"
    place = section.page if section.heading == section.title else f"{section.page}#{section.anchor}"
    return ManualHit(place, title, _excerpt(section.text, frozenset(asked)), score)


def _excerpt(text: str, asked: frozenset[str]) -> str:
    parts = [part for part in re.split(r"\n\s*\n|\n(?=[|-] ?)", text) if part.strip(" |-\n") and "<!--" not in part]
    best = max(parts, key=lambda part: len(asked & set(terms(part))), default="")
    plain = " ".join(without_links(best).replace("|", " ").replace("`", "").split())
    return plain if len(plain) <= _EXCERPT_CHARS else plain[: _EXCERPT_CHARS - 1].rsplit(" ", 1)[0] + " …"


@cache
def manual_pages() -> Mapping[str, str]:
    """Return the text of every page by path (`README.md`, `docs/jobs.md`); empty without a manual."""
    if INSTALLED.is_dir():
        found = {
            (path.name if path.name == "README.md" else f"docs/{path.name}"): path for path in INSTALLED.glob("*.md")
        }
    else:
        root = INSTALLED.parents[3]
        found = {str(path.relative_to(root)): path for path in (root / "README.md", *(root / "docs").glob("*.md"))}
    return {name: found[name].read_text("utf-8") for name in sorted(found) if found[name].is_file()}


@cache
def manual_pictures() -> Mapping[str, bytes]:
    folder = INSTALLED if INSTALLED.is_dir() else INSTALLED.parents[3] / "docs" / "pictures"
    return {path.name: path.read_bytes() for path in folder.glob("*.[sp][vn]g")}

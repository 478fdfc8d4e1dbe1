"""Read YAML and JSON texts into plain JSON values, with the line of each part.

All defects are reported at once. YAML follows the core schema (1.2) with anchors, so `no` and `2026-11-21` are texts.
The text is untrusted: its size, depth and the expansion of its aliases are bounded.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from planq.shared.agentic.schema.schemas import MAX_DEPTH
from planq.shared.platform.errors import capped
from planq.shared.platform.values.decoding import decode
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import excerpt, is_deeper_than
from planq.shared.platform.values.pointers import path_pointer

MAX_CHARS = 256 * 1024
"""Maximum length of a document; a hundred pages of instructions are shorter."""

MAX_PARTS = 20_000
"""Maximum parts of a document, each use of an alias counted: a few lines can expand to millions."""

DocumentPath = tuple[str | int, ...]

Finding = tuple[DocumentPath, str]
"""Path and message of a defect whose line is not known yet (`DocumentSource.defect`)."""


@dataclass(slots=True)
class DocumentSource:
    """A value with the lines of its parts; `value` lacks the parts with `defects`."""

    value: Any = None
    lines: dict[DocumentPath, int] = field(default_factory=dict)
    defects: list[Defect] = field(default_factory=list)

    def defect(self, path: DocumentPath, message: str) -> Defect:
        """Return a defect at `path`, with the line of the nearest part that has one."""
        near = path
        while near and near not in self.lines:
            near = near[:-1]
        return Defect(path_pointer(path), "", message, self.lines.get(near))


def _unreadable(message: str, line: int | None = None) -> DocumentSource:
    return DocumentSource(defects=[Defect("", "", message, line)])


def read_source(source: str | bytes | Mapping[str, Any]) -> DocumentSource:
    """Read a document from its text, or a decoded one; never raises."""
    if isinstance(source, Mapping):
        return _decoded(source)
    if isinstance(source, str):
        return _read_text(source)
    try:
        return _read_text(source.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return _unreadable("the text is not UTF-8", source[: error.start].count(b"\n") + 1)


def _read_text(text: str) -> DocumentSource:
    if len(text) > MAX_CHARS:
        return _unreadable(f"the text has {len(text)} characters; at most {MAX_CHARS} are taken")
    marked = _read_json(text) if text.lstrip().startswith("{") else None
    return _read_yaml(text) if marked is None else marked


def _decoded(source: Mapping[str, Any]) -> DocumentSource:
    if is_deeper_than(source, MAX_DEPTH):
        return _unreadable(_TOO_DEEP)
    try:
        text = json.dumps(source, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError) as error:
        return _unreadable(f"expected JSON: {capped(str(error), 200)}")
    if len(text) > MAX_CHARS:
        return _unreadable(f"the document has {len(text)} characters; at most {MAX_CHARS} are taken")
    value = json.loads(text)
    return DocumentSource(value, defects=[_nul(path) for path in _with_nul(value)])


def _read_json(text: str) -> DocumentSource | None:
    """Return the source of a JSON text, or None: it may be YAML in braces."""
    try:
        value = decode(text)
    except (ValueError, RecursionError):
        return None
    if is_deeper_than(value, MAX_DEPTH):
        return _unreadable(_TOO_DEEP)
    if _has_too_many_parts(value):
        return _unreadable(_TOO_MANY_PARTS)
    # JSON may have tabs between its parts, YAML may not.
    marked = _read_yaml(text.replace("\t", " "))
    defects = [found for found in marked.defects if found.message == _TWICE]
    return DocumentSource(value, marked.lines, [*defects, *map(_nul, _with_nul(value))])


def _read_yaml(text: str) -> DocumentSource:
    marked = DocumentSource()
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            marked.value = _Reading(loader, marked).value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        marked.defects.append(
            Defect("", "", f"not valid YAML: {capped(problem, 200)}", mark.line + 1 if mark else None)
        )
    except SourceTooLarge as error:
        marked.defects.append(Defect("", "", str(error)))
    except yaml.YAMLError as error:
        marked.defects.append(Defect("", "", f"not valid YAML: {capped(' '.join(str(error).split()), 200)}"))
    return marked


def _has_too_many_parts(value: Any) -> bool:
    parts, stack = 1, [value]
    while stack:
        item = stack.pop()
        inner = item.values() if isinstance(item, dict) else item
        parts += len(inner)
        if parts > MAX_PARTS:
            return True
        stack.extend(one for one in inner if isinstance(one, (dict, list)))
    return False


_TWICE = "this key is already used above"


def _nul(path: DocumentPath) -> Defect:
    return Defect(path_pointer(path), "", "the text holds a NUL character, which cannot be stored")


def _with_nul(value: Any) -> list[DocumentPath]:
    found: list[DocumentPath] = []
    stack: list[tuple[DocumentPath, Any]] = [((), value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, Mapping):
            found += [path for key in item if "\0" in key]
            stack += [((*path, key), inner) for key, inner in item.items()]
        elif isinstance(item, list):
            stack += [((*path, index), inner) for index, inner in enumerate(item)]
        elif isinstance(item, str) and "\0" in item:
            found.append(path)
    return found


_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
_TOO_MANY_PARTS = f"more than {MAX_PARTS} parts, each use of an alias counted"


class SourceTooLarge(yaml.YAMLError):
    """The text is nested too deeply, or has or expands to too many parts."""


class BoundedLoader(yaml.SafeLoader):
    """The safe loader, limited while it reads: 5 kB of brackets would take a second."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        if self.flow_level > MAX_DEPTH:
            raise SourceTooLarge(_TOO_DEEP)
        super().fetch_flow_collection_start(token_class)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_key = isinstance(parent, yaml.MappingNode) and index is None
        self._nodes += not is_key
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            raise SourceTooLarge(_TOO_DEEP)
        if self._nodes > MAX_PARTS:
            raise SourceTooLarge(_TOO_MANY_PARTS)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text; raises `yaml.YAMLError`, also for a text too large."""
    return yaml.load(text, BoundedLoader)  # noqa: S506 (a safe loader)


class _Loader(BoundedLoader):
    """The core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema) instead of YAML 1.1's."""


_Loader.yaml_implicit_resolvers = {}  # its own, or those of the library's loader would change


_TAG = "tag:yaml.org,2002:"
for _tag, _form, _firsts in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(_TAG + _tag, re.compile(rf"^(?:{_form})$"), list(_firsts))
_Loader.add_implicit_resolver(_TAG + "null", re.compile(r"^$"), [""])

_SCALARS = frozenset(_TAG + name for name in ("bool", "null", "int", "float", "str"))


class _Reading:
    """Converts a tree of nodes to a value, and collects lines and defects."""

    def __init__(self, loader: _Loader, marked: DocumentSource) -> None:
        self._loader = loader
        self._marked = marked
        self._parts = 0

    def value(self, node: yaml.Node, path: DocumentPath) -> Any:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise SourceTooLarge(_TOO_MANY_PARTS)
        if len(path) > MAX_DEPTH:
            raise SourceTooLarge(_TOO_DEEP)
        self._marked.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._object(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _object(self, node: yaml.MappingNode, path: DocumentPath) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, inner in node.value:
            name = self._key(key, path)
            if name is None:
                continue
            self._marked.lines[(*path, name)] = key.start_mark.line + 1
            if name in made:
                self._tell((*path, name), _TWICE)
            made[name] = self.value(inner, (*path, name))
        return made

    def _key(self, node: yaml.Node, path: DocumentPath) -> str | None:
        is_text = isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "str"
        if is_text and node.value != "<<" and "\0" not in node.value and _is_text(node.value):
            return str(node.value)
        shown = excerpt(node.value) if isinstance(node, yaml.ScalarNode) else "a list or an object"
        line = node.start_mark.line + 1
        self._marked.defects.append(
            Defect(path_pointer(path), "", f"expected a text as key, found {shown}; quote it", line)
        )
        return None

    def _scalar(self, node: yaml.Node, path: DocumentPath) -> Any:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALARS:
            return self._tell(path, f"expected plain JSON, found the tag {capped(node.tag, 60)!r}; remove it")
        try:
            value = self._loader.construct_object(node)
        except (ValueError, OverflowError):
            return self._tell(path, f"expected a number of JSON, found {excerpt(node.value)}")
        if isinstance(value, float) and not math.isfinite(value):
            return self._tell(path, f"expected a number of JSON, found {excerpt(node.value)}")
        if isinstance(value, str) and ("\0" in value or not _is_text(value)):
            return self._tell(path, "the text holds a character that cannot be stored")
        return value

    def _tell(self, path: DocumentPath, message: str) -> None:
        self._marked.defects.append(self._marked.defect(path, message))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate, from an escape
        return False
    return True

"""Agently's workflow documents: compiled to a loop block, or refused with every line that cannot be expressed.

    init, vars     values; a variable that `exec` increments is the number of rounds
    stage.loop     the tasks `plan` (llm/core:plan), `exec` (llm/exec:run_plan), then calls of tools
    task           action, when, input, post, goto {when, task: loop}, onError, abort

A document without `stage` changes the tasks of the default workflow. planq passes the planner's and executor's own
data (`plan`, `results`, …) on by itself: a field that only does so is ignored, any other is refused.

Expressions become JMESPath:


"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planq.shared.agentic.rounds.block import PROMPT_VARIABLES, LoopBlock, read_block
from planq.shared.agentic.source import DocumentPath, DocumentSource, read_source
from planq.shared.agentic.tools.names import to_registry
from planq.shared.platform.errors import InvalidRequest, capped
from planq.shared.platform.values.defects import Defect
from planq.shared.platform.values.describe import excerpt, sentence_list

_PLAN, _EXEC = "llm_core_plan", "llm_exec_run_plan"
_PASSED_ON = frozenset(
    {"model", "tools", "query", "context", "results", "transcript", "plan", "answer", "elicitation"}
)
"""Data that flows between planner and executor by itself."""

_DEFAULT: dict[str, Any] = {
    "plan": {"action": "llm/core:plan"},
    "exec": {"action": "llm/exec:run_plan", "when": "len(plan.steps) > 0", "goto": {"task": "loop"}},
}
_NOT_KEPT = frozenset({"name", "description", "version"})
_HAS_STEPS = re.compile(r"len\(\s*plan\.steps\s*\)\s*(?:>\s*0|!=\s*0|>=\s*1)")
_FIELDS = {
    "results": frozenset({"name", "args", "result", "error"}),
    "plan": frozenset({"steps"}),
    "step": frozenset({"name", "args", "error"}),
}
_MOST_LISTED = 20
_TOKEN = re.compile(
    r"(?<!\s)\s*+(?:(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>&&|\|\||[=!<>]=|[-+*/!<>()\[\].,]))"
)
_INSERTION = re.compile(r"\$\{([^{}]*)(\}?)")
_CONSTANTS = {"true": "`true`", "false": "`false`", "null": "`null`", "nil": "`null`"}
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
_MAX_NESTING = 30

EMPTY_TEXT = "''"
_VELOCITY = re.compile(
    r"(?P<comment>##[^\n]*)|(?P<directive>#[A-Za-z@*{]\w*)(?P<given>\([^()\n]*\))?"
    r"|\$!?(?:\{(?P<braced>[^}]*)\}|(?P<name>[A-Za-z_]\w*(?:\.\w+)*))"
)
_CONDITION = re.compile(r"\(\s*\$!?\{?\s*(?P<name>[A-Za-z_]\w*(?:\.\w+)*)\s*\}?\s*\)")
_EACH = re.compile(r"\(\s*\$(?P<item>[A-Za-z_]\w*)\s+in\s+\$\{?(?P<name>[A-Za-z_]\w*)\}?\s*\)")
_SUMMARY = "resultSummary"
"""Agently's text for long results; planq shortens `results` itself."""


def import_workflow(source: str | bytes, variables: Mapping[str, Any] | None = None) -> LoopBlock:
    """Return the loop block of a workflow (YAML or JSON) with the caller's `variables`.

    Raises `InvalidRequest` whose `details["errors"]` has each defect as `{path, line, message}`.
    """
    marked = read_source(source)
    if marked.defects:
        raise _refusal(marked.defects)
    if not isinstance(marked.value, Mapping):
        raise _refusal([marked.defect((), f"expected a workflow, found {excerpt(marked.value)}")])
    compiler = _Compiler(marked, dict(variables or {}))
    raw = compiler.compiled(marked.value)
    if compiler.defects:
        raise _refusal(compiler.defects)
    block, found = read_block(raw)
    if block is None:
        raise _refusal([Defect("/".join(map(str, ("", *path))), "", message) for path, message in found])
    return block


def _refusal(defects: list[Defect]) -> InvalidRequest:
    ordered = sorted(defects, key=lambda defect: (defect.line or 0, defect.pointer))
    listed = sentence_list([defect.render() for defect in ordered], _MOST_LISTED)
    return InvalidRequest(f"the workflow cannot be imported: {listed}", errors=[one.of_document() for one in ordered])


_REFUSED = "#"
"""Item name inside a refused block: nothing in it is refused a second time."""


class _Velocity:
    """Translates one Velocity template; `refuse` gets the line of each defect."""

    def __init__(self, text: str, refuse: Callable[[int, str], None]) -> None:
        self._text = text
        self._refuse = refuse
        self._open: list[tuple[str, str, int]] = []
        """Directives that wait for their `#end`: which, the name of a loop's item, the line."""

    def translated(self) -> str:
        written: list[str] = []
        last = 0
        for match in _VELOCITY.finditer(self._text):
            if not self._is_left_out():
                written.append(self._text[last : match.start()])
            last = match.end()
            found = self._translated(match, self._text.count("\n", 0, match.start()) + 1)
            written.append(found)
        for directive, _, line in self._open:
            self._refuse(line, f"{directive} has no #end")
        return "".join([*written, self._text[last:]])

    def _translated(self, match: re.Match[str], line: int) -> str:
        if match["comment"]:
            return ""
        if match["directive"]:
            return self._directive(match, line)
        inserted = self._insertion((match["braced"] or match["name"] or "").strip(), line)
        return "" if self._is_left_out() else inserted

    def _directive(self, match: re.Match[str], line: int) -> str:
        directive, given = match["directive"], match["given"] or ""
        if directive == "#end":
            if not self._open:
                self._refuse(line, "#end closes nothing")
                return given
            self._open.pop()
            return "" if self._is_left_out() else given
        if directive == "#if" and (found := _CONDITION.fullmatch(given)):
            name = _own_name(found["name"])
            self._insertion(found["name"], line)
            self._open.append((directive, _SUMMARY if name == _SUMMARY else "", line))
            return ""
        if directive == "#foreach" and (found := _EACH.fullmatch(given)) and _own_name(found["name"]) == "results":
            written = "" if self._is_left_out() else "{{results}}"
            self._open.append((directive, found["item"], line))
            return written
        self._refuse(line, f"{capped(directive + given, 100)} cannot be said here")
        if directive in ("#if", "#foreach", "#macro", "#define"):
            self._open.append((directive, _REFUSED, line))
        return ""

    def _is_left_out(self) -> bool:
        return any(name for _, name, _ in self._open)

    def _insertion(self, name: str, line: int) -> str:
        """Return the text for a reference; refuses unknown ones."""
        items = [item for directive, item, _ in self._open if directive == "#foreach"]
        first, _, field = name.partition(".")
        if _REFUSED in (item for _, item, _ in self._open):
            return ""
        if first in items:
            if field.lower() not in _FIELDS["results"]:
                self._refuse(
                    line, f"a result has no {field!r}; known fields are {', '.join(sorted(_FIELDS['results']))}"
                )
            return ""
        own = _own_name(name)
        if own == _SUMMARY:
            return ""
        if own not in PROMPT_VARIABLES:
            self._refuse(line, f"nothing is called {name!r}; known names are {', '.join(PROMPT_VARIABLES)}")
        return f"{{{{{own}}}}}"


def _own_name(name: str) -> str:
    """Return planq's spelling of Agently's variable, which may begin with a capital."""
    return name[:1].lower() + name[1:]


class _Compiler:
    """Compiles one document; `defects` cannot be expressed."""

    def __init__(self, marked: DocumentSource, variables: Mapping[str, Any]) -> None:
        self.defects: list[Defect] = []
        self._marked = marked
        self._given = variables
        self._vars: dict[str, Any] = {}
        self._counters: dict[str, int] = {}

    def compiled(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the block as an author would write it."""
        for key in document.keys() - {"init", "vars", "stage"} - _NOT_KEPT if "stage" in document else ():
            self._refuse((key,), "unknown field of a workflow; known are init, vars and stage")
        self._read_variables(document)
        tasks, later = self._tasks(document)
        self._count(tasks)
        block: dict[str, Any] = {}
        after: list[dict[str, Any]] = []
        seen: list[str] = []
        for path, task in tasks:
            action = self._action(path, task)
            if action == _PLAN:
                self._plan(path, task, block)
            elif action == _EXEC:
                self._exec(path, task, block)
            elif action is not None:
                if _EXEC not in seen:
                    self._refuse(path, "a task before the executor cannot be said; those after it can")
                after.append(self._call(path, task, action))
            seen.append(action or "")
        after += [self._call(path, task, self._action(path, task) or "") for path, task in later]
        for needed, name in ((_PLAN, "llm/core:plan"), (_EXEC, "llm/exec:run_plan")):
            if needed not in seen and not self.defects:
                self._refuse(("stage",), f"the loop has no task with the action {name}")
        if after:
            block["after"] = after
        kept = {name: value for name, value in self._vars.items() if name not in self._counters}
        return {**block, "vars": kept} if kept else block

    def _refuse(self, path: DocumentPath, message: str) -> None:
        self.defects.append(self._marked.defect(path, message))

    def _read_variables(self, document: Mapping[str, Any]) -> None:
        for part in ("init", "vars"):
            values = document.get(part)
            if values is None:
                continue
            if not isinstance(values, Mapping):
                self._refuse((part,), f"expected an object with variables, found {excerpt(values)}")
                continue
            for name, value in values.items():
                if "${" in str(value):
                    self._refuse((part, name), "a variable that is computed cannot be said; write its value")
                elif name not in _PASSED_ON:
                    self._vars[name] = value
                elif value not in ([], {}, "", None):
                    self._refuse((part, name), f"planq fills {name} itself; leave it empty")
        self._vars |= self._given

    def _tasks(
        self, document: Mapping[str, Any]
    ) -> tuple[list[tuple[DocumentPath, Any]], list[tuple[DocumentPath, Any]]]:
        """Return the tasks of the loop and those after it, each with its path."""
        if "stage" not in document:
            own = {name: task for name, task in document.items() if name not in {"init", "vars", *_NOT_KEPT}}
            names = list(dict.fromkeys([*_DEFAULT, *own]))
            return [((name,), self._changed((name,), own.get(name))) for name in names], []
        stage = document["stage"]
        loop = stage.get("loop") if isinstance(stage, Mapping) else None
        if not isinstance(stage, Mapping) or not isinstance(loop, Mapping):
            self._refuse(("stage",), "expected an object with the loop's tasks under loop")
            return [], []
        names = list(stage)
        for name in names[: names.index("loop")]:
            self._refuse(("stage", name), "a task before the loop cannot be said; those after it can")
        later: list[tuple[DocumentPath, Any]] = [
            (("stage", name), stage[name]) for name in names[names.index("loop") + 1 :]
        ]
        return [(("stage", "loop", name), task) for name, task in loop.items()], later

    def _changed(self, path: DocumentPath, own: Any) -> Any:
        default = _DEFAULT.get(str(path[0]))
        if own is None or default is None:
            return default if own is None else own
        return {**default, **own} if isinstance(own, Mapping) else own

    def _action(self, path: DocumentPath, task: Any) -> str | None:
        action = task.get("action") if isinstance(task, Mapping) else None
        if not isinstance(action, str) or not action:
            self._refuse(path, "expected a task with an action")
            return None
        return to_registry(action)

    def _count(self, tasks: list[tuple[DocumentPath, Any]]) -> None:
        """Find the variables that the executor increments: they count rounds."""
        for path, task in tasks:
            post = task.get("post") if isinstance(task, Mapping) else None
            if not isinstance(post, Mapping) or to_registry(str(task.get("action"))) != _EXEC:
                continue
            for name, value in post.items():
                if isinstance(value, str) and incremented(value) == name:
                    start = self._vars.get(name, 0)
                    if isinstance(start, int) and not isinstance(start, bool):
                        self._counters[name] = start
                    else:
                        self._refuse(
                            (*path, "post", name), f"{name} begins as {excerpt(start)}, which cannot be counted"
                        )

    def _names(self, *, in_error: bool = False) -> WorkflowNames:
        known = {"results": "results", "plan": "plan", "query": "query"}
        known |= {name: f"vars.{name}" for name in self._vars}
        known |= {name: f"sum([round, `{n}`])" if n else "round" for name, n in self._counters.items()}
        if in_error:
            known |= {"step": "step", "error": "error"}
        return WorkflowNames(known, _FIELDS)

    # The planner.

    def _plan(self, path: DocumentPath, task: Mapping[str, Any], block: dict[str, Any]) -> None:
        self._only(path, task, "action", "input", "post")
        self._pass_on((*path, "post"), task.get("post"))
        given = task.get("input")
        if not isinstance(given, Mapping):
            self._pass_on((*path, "input"), given)
            return
        own = {"promptTemplate": self._prompt, "tools": self._tool_names}
        for name, value in given.items():
            place = (*path, "input", name)
            if name in own and not (isinstance(value, str) and identity(value) == name):
                own[name](place, value, block)
            else:
                self._pass_on((*path, "input"), {name: value})

    def _prompt(self, path: DocumentPath, value: Any, block: dict[str, Any]) -> None:
        text: Any = value
        if isinstance(value, str) and (name := identity(value)) is not None:
            text = self._vars.pop(name, None)
            if text is None:
                self._refuse(path, f"nothing sets {name}: give its text with --var {name}=@FILE")
                return
        if text in (None, ""):
            return  # then the default prompt is meant
        if not isinstance(text, str):
            self._refuse(path, f"expected the text of a template, found {excerpt(text)}")
            return
        block["prompt"] = {"text": self._velocity(path, text)}

    def _velocity(self, path: DocumentPath, text: str) -> str:
        """Translate a Velocity template: a condition's text stays (missing values are empty), loops become
        `{{results}}`.
        """
        template = _Velocity(
            text, lambda line, problem: self._refuse(path, f"line {line} of the template: {problem}")
        )
        return template.translated()

    def _tool_names(self, path: DocumentPath, value: Any, block: dict[str, Any]) -> None:
        if isinstance(value, str) and (name := identity(value)) is not None:
            value = self._vars.pop(name, None)
        names = [one.strip() for one in value.split(",")] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(one, str) and one for one in names):
            self._refuse(path, f"expected the names of tools, found {excerpt(value)}")
            return
        block["tools"] = {"allow": [to_registry(one) for one in names]}

    # The executor.

    def _exec(self, path: DocumentPath, task: Mapping[str, Any], block: dict[str, Any]) -> None:
        self._only(path, task, "action", "when", "input", "post", "goto", "onError", "abort")
        self._pass_on((*path, "input"), task.get("input"))
        post = task.get("post")
        if isinstance(post, Mapping):
            post = {name: value for name, value in post.items() if incremented(str(value)) != name}
        self._pass_on((*path, "post"), post)
        when = task.get("when")
        if when is not None and not (isinstance(when, str) and _HAS_STEPS.fullmatch(when.strip())):
            self._refuse((*path, "when"), "the executor runs whenever there are steps; expected len(plan.steps) > 0")
        self._goto((*path, "goto"), task.get("goto"), block)
        self._on_error(path, task, block)

    def _goto(self, path: DocumentPath, goto: Any, block: dict[str, Any]) -> None:
        if goto is None:
            block["max_rounds"] = 1
            return
        if not isinstance(goto, Mapping) or goto.get("task") != "loop":
            self._refuse(path, "expected task: loop; a jump elsewhere cannot be said")
            return
        self._only(path, goto, "task", "when")
        when = goto.get("when")
        if when is None:
            return
        if not isinstance(when, str):
            self._refuse((*path, "when"), f"expected an expression, found {excerpt(when)}")
            return
        until: list[str] = []
        for part in conjuncts(when):
            compared = comparison(part)
            if _HAS_STEPS.fullmatch(part):
                continue  # without steps the loop ends by itself
            if compared is not None and compared.name in self._counters:
                most = compared.number - self._counters[compared.name] + (compared.sign == "<=")
                block["max_rounds"] = min(max(most, 1), block.get("max_rounds", most))
            elif (condition := self._expression((*path, "when"), part)) is not None:
                until.append(f"!({condition})")
        if until:
            block["until"] = until

    def _on_error(self, path: DocumentPath, task: Mapping[str, Any], block: dict[str, Any]) -> None:
        given = task.get("onError")
        place = (*path, "onError")
        if given is None and not task.get("abort"):
            return
        handler = given if isinstance(given, Mapping) else {}
        if given is not None and not isinstance(given, Mapping):
            self._refuse(place, f"expected an action, found {excerpt(given)}")
        self._only(place, handler, "action", "input", "when", "abort")
        rule: dict[str, Any] = {}
        if "when" in handler:
            rule["when"] = self._expression((*place, "when"), handler["when"], in_error=True)
        if given is not None and (action := self._action(place, handler)) is not None:
            rule["tool"] = action
            if handler.get("input"):
                rule["with"] = self._data((*place, "input"), handler["input"], in_error=True)
        if task.get("abort") or handler.get("abort"):
            rule["then"] = "abort"
        block["on_error"] = [rule]

    # Calls of tools.

    def _call(self, path: DocumentPath, task: Any, action: str) -> dict[str, Any]:
        if not isinstance(task, Mapping):
            return {}
        self._only(path, task, "action", "when", "input", "post")
        self._only_identities((*path, "post"), task.get("post"))
        rule: dict[str, Any] = {"tool": action}
        if "when" in task:
            rule["when"] = self._expression((*path, "when"), task["when"])
        if task.get("input"):
            rule["with"] = self._data((*path, "input"), task["input"])
        return rule

    def _data(self, path: DocumentPath, value: Any, *, in_error: bool = False) -> Any:
        if isinstance(value, Mapping):
            return {key: self._data((*path, key), inner, in_error=in_error) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._data((*path, index), inner, in_error=in_error) for index, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        try:
            return translated_text(value, self._names(in_error=in_error))
        except NotExpressible as error:
            self._refuse(path, str(error))
            return value

    def _expression(self, path: DocumentPath, text: Any, *, in_error: bool = False) -> str | None:
        try:
            if not isinstance(text, str):
                raise NotExpressible(f"expected an expression, found {excerpt(text)}")
            inner = text.strip()
            inner = inner[2:-1] if inner.startswith("${") and inner.endswith("}") else inner
            return as_jmespath(inner, self._names(in_error=in_error))
        except NotExpressible as error:
            self._refuse(path, str(error))
            return None

    # What says nothing here.

    def _only(self, path: DocumentPath, task: Mapping[str, Any], *known: str) -> None:
        for name in task:
            if name not in known:
                self._refuse((*path, name), f"unknown field, or one that cannot be said here: {name}")

    def _pass_on(self, path: DocumentPath, given: Any) -> None:
        """Refuse fields that do more than pass on the planner's and executor's data."""
        if given is None:
            return
        if not isinstance(given, Mapping):
            self._refuse(path, f"expected an object, found {excerpt(given)}")
            return
        for name, value in given.items():
            source = identity(value) if isinstance(value, str) else None
            if name not in _PASSED_ON or source is None or source.split(".")[-1] != name:
                self._refuse(
                    (*path, name), f"{name}: {excerpt(value)} cannot be said; the planner's data flow by themselves"
                )

    def _only_identities(self, path: DocumentPath, given: Any) -> None:
        """Refuse computed fields: a call's output is only in the job's steps."""
        for name, value in given.items() if isinstance(given, Mapping) else ():
            if not isinstance(value, str) or identity(value) != name:
                self._refuse(
                    (*path, name), f"{name}: {excerpt(value)} cannot be said; a step keeps its output as it is"
                )


class NotExpressible(ValueError):
    """Text that JMESPath or planq cannot express, or that is no expression."""


@dataclass(frozen=True, slots=True)
class WorkflowNames:
    """The JMESPath of known root names, and their known fields."""

    known: Mapping[str, str]
    fields: Mapping[str, frozenset[str]]

    def path(self, name: str, rest: str) -> str:
        """Return the JMESPath of a path; `rest` is its fields and indices as written."""
        if name not in self.known:
            listed = ", ".join(sorted(self.known))
            raise NotExpressible(f"nothing is called {name!r} here; known names are {listed}")
        allowed = self.fields.get(name)
        named = re.findall(r"\.([A-Za-z_][A-Za-z0-9_]*)", rest)
        if allowed is not None and named and named[0] not in allowed:
            raise NotExpressible(f"{name} has no {named[0]!r} here; it has {', '.join(sorted(allowed))}")
        return self.known[name] + rest


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison `name < number`, as of a counter."""

    name: str
    sign: str
    number: int


def as_jmespath(text: str, names: WorkflowNames) -> str:
    """Return the JMESPath of an expression; raises `NotExpressible`."""
    return _Parser(text, names).whole()


def translated_text(text: str, names: WorkflowNames) -> str:
    """Return a text with `${…}` as `{{ … }}`; raises `NotExpressible`."""
    done: list[str] = []
    end = 0
    for match in _INSERTION.finditer(text):
        if not match[2]:
            raise NotExpressible(f"{excerpt(text[match.start() :])} has no closing brace, or braces inside")
        done += [text[end : match.start()].replace("{{", "\\{{"), f"{{{{ {as_jmespath(match[1], names)} }}}}"]
        end = match.end()
    return "".join([*done, text[end:].replace("{{", "\\{{")])


def conjuncts(text: str) -> list[str]:
    """Return the parts of an expression between its outermost `&&`."""
    parts, depth, start = [], 0, 0
    for match in _TOKEN.finditer(text):
        sign = match["sign"]
        depth += (sign in ("(", "[")) - (sign in (")", "]"))
        if sign == "||" and depth == 0:
            return [text.strip()]
        if sign == "&&" and depth == 0:
            parts.append(text[start : match.start("sign")].strip())
            start = match.end()
    return [*parts, text[start:].strip()]


def comparison(text: str) -> Comparison | None:
    """Return the comparison of one name with a whole number; None for anything else."""
    match = re.fullmatch(r"([A-Za-z_]\w*)\s*(<=|<)\s*(-?[0-9]{1,9})", text.strip())
    return None if match is None else Comparison(match[1], match[2], int(match[3]))


def incremented(text: str) -> str | None:
    """Return the name in `${name + 1}`; None for anything else."""
    match = re.fullmatch(r"\$\{\s*([A-Za-z_]\w*)\s*\+\s*1\s*\}", text.strip())
    return None if match is None else match[1]


def identity(text: str) -> str | None:
    """Return the path in `${path}`; None for anything else."""
    match = re.fullmatch(r"\$\{\s*([A-Za-z_][\w.]*)\s*\}", text.strip())
    return None if match is None else match[1]


class _Parser:
    def __init__(self, text: str, names: WorkflowNames) -> None:
        self._text = text
        self._names = names
        self._tokens = self._read()
        self._at = 0
        self._depth = 0

    def _read(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        place, text = 0, self._text.rstrip()
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None or match.lastgroup is None:
                raise NotExpressible(f"{excerpt(text)} is no expression: character {place + 1} cannot be read")
            found.append((match.lastgroup, match[match.lastgroup]))
            place = match.end()
        return found

    def whole(self) -> str:
        made = self._or()
        if self._at < len(self._tokens):
            raise NotExpressible(f"{excerpt(self._text)} is no expression: {self._tokens[self._at][1]!r} is too much")
        return made

    def _sign(self, *signs: str) -> str | None:
        if self._at < len(self._tokens):
            kind, value = self._tokens[self._at]
            if kind == "sign" and value in signs:
                self._at += 1
                return value
        return None

    def _expect(self, sign: str) -> None:
        if self._sign(sign) is None:
            raise NotExpressible(f"{excerpt(self._text)} is no expression: {sign!r} is missing")

    def _joined(self, sign: str, part: Callable[[], str]) -> str:
        parts = [part()]
        while self._sign(sign):
            parts.append(part())
        return parts[0] if len(parts) == 1 else f" {sign} ".join(f"({one})" for one in parts)

    def _or(self) -> str:
        return self._joined("||", self._and)

    def _and(self) -> str:
        return self._joined("&&", self._compared)

    def _compared(self) -> str:
        left = self._sum()
        sign = self._sign(*_COMPARISONS)
        if sign is None:
            return left
        right = self._sum()
        if EMPTY_TEXT in (left, right) and sign in ("==", "!="):
            # What is empty there is null here.
            other = right if left == EMPTY_TEXT else left
            return f"!({other})" if sign == "==" else f"!(!({other}))"
        return f"{left} {sign} {right}"

    def _sum(self) -> str:
        made = self._unary()
        while (sign := self._sign("+", "-", "*", "/")) is not None:
            if sign in "*/":
                raise NotExpressible(f"{sign!r} cannot be said: expressions here only add and subtract")
            other = self._unary()
            if sign == "-":
                number = re.fullmatch(r"`([0-9.]+)`", other)
                if number is None:
                    raise NotExpressible("only a number can be subtracted here")
                other = f"`-{number[1]}`"
            made = f"sum([{made}, {other}])"
        return made

    def _unary(self) -> str:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise NotExpressible("the expression is nested too deeply")
        made = self._signed() or self._atom()
        self._depth -= 1
        return made

    def _signed(self) -> str | None:
        if self._sign("!"):
            return f"!({self._unary()})"
        if self._sign("-"):
            number = re.fullmatch(r"`([0-9.]+)`", self._unary())
            if number is None:
                raise NotExpressible("only numbers can have a minus here")
            return f"`-{number[1]}`"
        if self._sign("("):
            made = self._or()
            self._expect(")")
            return f"({made})"
        return None

    def _atom(self) -> str:
        if self._at >= len(self._tokens):
            raise NotExpressible(f"{excerpt(self._text)} is no expression: it ends too early")
        kind, value = self._tokens[self._at]
        self._at += 1
        if kind == "number":
            return f"`{value}`"
        if kind == "text":
            return _raw_text(value)
        if kind == "sign":
            raise NotExpressible(f"{excerpt(self._text)} is no expression: {value!r} is out of place")
        if value in _CONSTANTS:
            return _CONSTANTS[value]
        if self._sign("("):
            return self._call(value)
        return self._path(value)

    def _call(self, name: str) -> str:
        if name != "len":
            raise NotExpressible(f"the function {name!r} cannot be said here; len can")
        inner = self._or()
        self._expect(")")
        return f"length({inner})" if inner in ("results", "plan.steps", "query") else f"length({inner} || `[]`)"

    def _path(self, name: str) -> str:
        rest = ""
        while (sign := self._sign(".", "[")) is not None:
            minus = "-" if sign == "[" and self._sign("-") else ""
            kind, value = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
            self._at += 1
            if sign == "." and kind == "name":
                rest += f".{value}"
            elif sign == "[" and kind == "number" and "." not in value:
                rest += f"[{minus}{value}]"
                self._expect("]")
            elif sign == "[":
                raise NotExpressible("an index is a whole number here")
            else:
                raise NotExpressible(f"{excerpt(self._text)} is no expression: a field is missing after '.'")
        return self._names.path(name, rest)


def _raw_text(token: str) -> str:
    inner = token[1:-1]
    if token[0] == '"':
        try:
            inner = json.loads(token)
        except ValueError:
            raise NotExpressible(f"the text {token} has an escape that JSON does not know") from None
    else:
        inner = inner.replace("\\'", "'")
    return "'" + inner.replace("'", "\\'") + "'"

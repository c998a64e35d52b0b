"""Pages of what Python users call, each from its docstring, and the docstring as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import perfmodel


@dataclass(frozen=True, slots=True)
class Word:
    """A public name.

    `path`: where it is defined, dotted. `others`: further names of the same object.
    """

    name: str
    path: str
    others: tuple[str, ...] = ()

    @property
    def target(self) -> Any:
        """The object."""
        module, _, name = self.path.rpartition(".")
        return getattr(import_module(module), name)


def words() -> list[Word]:
    """Public names of `perfmodel`, and the results that its functions return."""
    names: dict[str, list[str]] = {}
    for name in sorted(perfmodel.__all__, key=lambda name: (len(name), name)):
        if name.startswith("__"):
            continue
        target = getattr(perfmodel, name)
        # Two packages can be called; their pages are about what a call does.
        target = CALLED[name] if inspect.ismodule(target) else target
        names.setdefault(f"{target.__module__}.{target.__name__}", []).append(name)
    found = [Word(own[0], path, tuple(own[1:])) for path, own in names.items()]
    found += [Word(name, f"perfmodel.api.results.{name}") for name in RESULTS]
    return sorted(found, key=lambda word: word.name)


CALLED: dict[str, Any] = {
    "topology": perfmodel.topology.build_cluster,  # type: ignore[attr-defined]
    "simulate": perfmodel.simulate.simulate_plan,  # type: ignore[attr-defined]
}
"""What a package does that is called."""

RESULTS = (
    "RunResult",
    "BucketTuning",
    "StrategyTuning",
    "ComparisonResult",
    "Sweep",
    "Plan",
    "AdviceResult",
)
"""Results of the functions, which show themselves; in the order of the commands."""


def api_pages() -> dict[str, str]:
    """Return Markdown by page: one for each name."""
    return {word.name: _page(word) for word in words()}


def summary(word: Word) -> str:
    """First sentence of a docstring."""
    return " ".join((inspect.getdoc(word.target) or "").partition("\n\n")[0].split())


def _page(word: Word) -> str:
    called = f"perfmodel.{word.name}" if word.name in perfmodel.__all__ else word.path
    lines = [f"# `{called}`", ""]
    if word.others:
        others = ", ".join(f"`perfmodel.{name}`" for name in word.others)
        lines += [f"Also called {others}.", ""]
    kind = "class" if inspect.isclass(word.target) else "function"
    if kind == "class" and issubclass(word.target, Exception):
        kind = "exception"
    members = ["   :members:", "   :inherited-members: BaseModel, Exception, tuple"]
    body = [f".. auto{kind}:: {word.path}", *(members if kind == "class" else [])]
    return "\n".join([*lines, "```{eval-rst}", *body, "```", ""])


def docstring_markdown(path: str) -> str:
    """Signature and docstring of an object, and of its methods of all kinds, as Markdown."""
    module, _, name = path.rpartition(".")
    target = getattr(import_module(module), name)
    lines = list(_described(name, target))
    if inspect.isclass(target) and not issubclass(target, Exception):
        for member, value in inspect.getmembers(target, inspect.isroutine):
            if member[0] != "_" and (value.__module__ or "").startswith("perfmodel"):
                lines += ["", f"## {member}", "", *_described(member, value)]
    return "\n".join(lines)


def _described(name: str, target: Any) -> Iterator[str]:
    is_error = inspect.isclass(target) and issubclass(target, Exception)
    quoted = "" if is_error else str(inspect.signature(target))
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", quoted)
    yield from ("```python", f"{name}{signature}", "```", "")
    yield inspect.getdoc(target) or ""


_FIELD = re.compile(r"(?P<names>`[^`]+`(?:, `[^`]+`)*): (?P<text>.*)")


def with_definitions(lines: list[str]) -> list[str]:
    """Make a list of lines such as "`nbytes`: its size", which this package's docstrings have.

    Examples
    --------
    >>> with_definitions(["`src`, `dst`: ranks that", "    send and receive."])
    ['', '`src`, `dst`', '    ranks that', '    send and receive.']
    """
    made: list[str] = []
    inside = False
    for line in lines:
        if field := _FIELD.fullmatch(line):
            made += [*([] if inside else [""]), field["names"], f"    {field['text']}"]
            inside = True
            continue
        if inside and line.strip() and not line.startswith(" "):
            made.append("")
            inside = False
        made.append(line)
    return made

"""A Markdown twin of each page, and ``llms.txt``, which lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from docs.extensions.drawn import DRAWN

_FENCE = re.compile(
    r"^(?P<mark>`{3,}|:{3,})\{(?P<name>[\w-]+)\} *(?P<argument>[^\n]*)\n(?P<body>.*?)^(?P=mark) *$",
    re.DOTALL | re.MULTILINE,
)
_OPTION = re.compile(r":(?P<name>[\w-]+):(?: (?P<value>.*))?$")
_TARGET = re.compile(r"^\(([\w-]+)\)=\n", re.MULTILINE)
_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def in_order(contents: Mapping[str, Sequence[str]], page: str) -> Iterator[str]:
    """Pages in the order of the tables of contents, from one on."""
    yield page
    for each in contents.get(page, ()):
        yield from in_order(contents, each)


def twin_of(source: str) -> str:
    """Return a page as plain Markdown: what directives draw is said in words."""
    text = _FRONT.sub("", source)
    while (plain := _FENCE.sub(_plain, text)) != text:
        text = plain
    text = _TARGET.sub(r'<a id="\1"></a>\n\n', text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _plain(fence: re.Match[str]) -> str:
    name, argument = fence["name"], fence["argument"].strip()
    lines = fence["body"].splitlines()
    options: dict[str, str] = {}
    while lines and (option := _OPTION.match(lines[0])):
        options[option["name"]] = option["value"] or ""
        lines.pop(0)
    body = "\n".join(lines).strip("\n")
    if name in DRAWN:
        return DRAWN[name](argument, body).markdown
    if name == "code-block":
        caption = f"{options['caption']}:\n\n" if "caption" in options else ""
        return f"{caption}```{argument}\n{body}\n```"
    if name == "toctree":
        return ""
    if name == "grid-item-card":
        link = options.get("link", "")
        return f"- [{argument}]({link}.md): {' '.join(body.split())}"
    title = f"**{argument or name.capitalize()}**\n\n" if name != "grid" else ""
    return title + body


def write_all(pages: Mapping[str, Path], folder: Path) -> None:
    """Write twins of pages, whose sources are given by name, and ``llms.txt``."""
    twins = {name: twin_of(path.read_text("utf-8")) for name, path in pages.items()}
    for name, text in twins.items():
        file = folder / f"{name}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (folder / "llms.txt").write_text(llms_text(twins), encoding="utf-8")


PARTS = {
    "tutorials": "Tutorials",
    "how": "How it works",
    "accuracy": "How accurate",
    "reference": "Reference",
}
"""Parts of the site by the folder of their pages."""


def llms_text(twins: Mapping[str, str]) -> str:
    """List all twins, by part, with the first sentence of each."""
    first = twins["index"]
    lines = [f"# {_title(first)}", "", f"> {_first_sentence(first)}", ""]
    lines += ["Each page below is Markdown; the same name with `.html` is the page for people."]
    for folder, title in PARTS.items():
        lines += ["", f"## {title}", ""]
        for name, text in twins.items():
            if name.startswith(f"{folder}/"):
                says = _first_sentence(text)
                lines.append(f"- [{_title(text)}]({name}.md){f': {says}' if says else ''}")
    return "\n".join(lines) + "\n"


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _first_sentence(text: str) -> str:
    """Of the first paragraph that is prose."""
    for part in text.split("\n\n")[1:]:
        if not part.startswith(("#", "|", "```", "- ", "1. ")):
            return re.split(r"(?<=[.?!]) ", " ".join(part.split()))[0]
    return ""

"""The extension: directives that draw, pages that are generated, and a Markdown twin of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs.extensions import api_pages, generated_pages, twins
from docs.extensions.drawn import DRAWN


class DrawnDirective(SphinxDirective):
    """Put what is drawn, or the Markdown that is written, into a page."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Return nodes of HTML, or of the Markdown where there is none."""
        argument = self.arguments[0] if self.arguments else ""
        drawn = DRAWN[self.name](argument, "\n".join(self.content))
        if drawn.html:
            return [nodes.raw("", drawn.html, format="html")]
        holder = nodes.Element()
        lines = StringList(drawn.markdown.splitlines(), source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset, holder, match_titles=True)
        return list(holder.children)


def _write_pages(app: Sphinx) -> None:
    generated_pages.write_all(Path(app.srcdir) / "reference")


def _write_twins(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        found = {name: Path(app.env.doc2path(name)) for name in app.env.found_docs}
        order = twins.in_order(app.env.toctree_includes, str(app.config.root_doc))
        twins.write_all({name: found[name] for name in order}, Path(app.outdir))


def _write_definitions(*event: Any) -> None:
    lines: list[str] = event[-1]
    lines[:] = api_pages.with_definitions(lines)


BEFORE_NUMPYDOC = 400


def setup(app: Sphinx) -> dict[str, Any]:
    """Add it to a build."""
    for name in DRAWN:
        if name != "eval-rst":
            app.add_directive(name, DrawnDirective)
    app.connect("autodoc-process-docstring", _write_definitions, priority=BEFORE_NUMPYDOC)
    app.connect("builder-inited", _write_pages)
    app.connect("build-finished", _write_twins)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

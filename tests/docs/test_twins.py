"""A Markdown twin says in words what its page draws; `llms.txt` lists all."""

from __future__ import annotations

from docs.extensions.twins import in_order, llms_text, twin_of

PAGE = """\
# A ring

Every rank has a buffer. More of it.

(a-target)=
```{schedule-steps} ring
ranks: 2
```

```{code-block} yaml
:caption: mine.yaml

a: 1
```

```{toctree}
:hidden:

other
```
"""


def test_directives_become_words() -> None:
    twin = twin_of(PAGE)
    assert "{" not in twin
    assert '<a id="a-target"></a>\n' in twin
    assert "rank 0 sends chunk" in twin
    assert "mine.yaml:\n\n```yaml\na: 1\n```" in twin
    assert "other" not in twin


def test_cards_become_a_list() -> None:
    cards = "::::{grid} 2\n:gutter: 3\n\n:::{grid-item-card} Tutorials\n:link: tutorials/index\n"
    cards += ":link-type: doc\nBegin\nhere.\n:::\n::::\n"
    assert twin_of(cards) == "- [Tutorials](tutorials/index.md): Begin here.\n"


def test_the_list_has_every_page_with_its_first_sentence() -> None:
    text = llms_text({"index": "# Us\n\nWe predict. Well.\n", "how/ring": twin_of(PAGE)})
    assert text.startswith("# Us\n\n> We predict.\n")
    assert "## How it works\n\n- [A ring](how/ring.md): Every rank has a buffer.\n" in text


def test_pages_come_in_the_order_of_the_contents() -> None:
    contents = {"index": ["b", "a"], "b": ["b/1"]}
    assert list(in_order(contents, "index")) == ["index", "b", "b/1", "a"]


def test_a_docstring_is_shown_with_its_signature() -> None:
    twin = twin_of("# `run`\n\n```{eval-rst}\n.. autofunction:: perfmodel.api.functions.run\n```\n")
    assert "```python\nrun(scenario: Question, fields: Fields | None = None" in twin
    assert "Predict the step time" in twin

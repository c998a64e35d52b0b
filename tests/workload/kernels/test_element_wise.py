"""The table of element-wise work: what it says of each kind, and that models ask for these."""

import re
from pathlib import Path

import perfmodel
from perfmodel.files import read_yaml
from perfmodel.workload.kernels import element_wise

TABLE = read_yaml(Path(element_wise.__file__).with_name("element_wise.yaml"))
ASKED = re.compile(r"(passes|kernels)_of\(\"(\w+)\"\)")


def asked() -> set[tuple[str, str]]:
    """All that modules of the package ask of the table."""
    sources = Path(perfmodel.__file__).parent.rglob("*.py")
    return {asking for path in sources for asking in ASKED.findall(path.read_text("utf-8"))}


def test_each_kind_has_a_source_and_work() -> None:
    for kind, row in TABLE.items():
        assert row["source"], kind
        assert set(row) - {"source"} <= {"passes", "kernels"}, kind
        assert all(row[name] >= 1 for name in set(row) - {"source"}), kind


def test_what_models_ask_for_is_there() -> None:
    assert len(asked()) > 40
    assert all(name in TABLE[kind] for name, kind in asked())


def test_no_row_is_left_that_nobody_reads() -> None:
    routers = {f"router_{scores}" for scores in ("softmax", "sigmoid", "top")}
    torch_kinds = {"batch_norm", "norm", "loss"}
    assert set(TABLE) == {kind for _, kind in asked()} | routers | torch_kinds


BOTH_PASSES = 1 + 5 / 3
"""Forward and backward over forward."""


def test_rotary_and_loss_move_what_was_measured() -> None:
    """The table of Liger-Kernel, "huggingface", on an A100: of half precision, and of fp32."""
    rotary, loss, cast = (element_wise.passes_of(kind) for kind in ("rotary", "loss", "cast"))
    assert 20 + 24 < rotary * BOTH_PASSES < 22 + 27
    assert abs(loss - cast - 4.4) < 0.2

"""A published step as its row states it: workload, machine, and the scenario that it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.files import read_yaml, validate_document
from perfmodel.files.read import parse_yaml
from perfmodel.scenario import ClusterSize, Scenario
from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.templates.spec import NodeSpec
from perfmodel.workload.memory.blocks import only_blocks_fuse
from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.bert import bert
from perfmodel.workload.zoo.decoders.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.decoders.llama import llama
from perfmodel.workload.zoo.gpt import GptShape, gpt

STAND_IN = "gpt2"
"""Model that the scenario names: what is trained is made of the row's own sizes."""
COMPUTE_LIKENESS = (
    "gpu", "precision", "compiled", "attention", "dtype", "unlike",
    "model", "sequence_length", "batch", "recompute", "optimizer_kernels",
)  # fmt: skip
"""Columns that decide how far compute is off: the first six have to agree, and the more of the
others do, the better, where one row's compute is scaled to another's."""
COMPILED = {"0": False, "1": True}
HAVE_TO_AGREE = 6
MEASURED = frozenset(
    {"step_s", "peak_GB", "memory_kind", "unlike", "presumed", "trust", "source", "note"}
)
"""Columns of what was measured, and remarks."""


@dataclass(frozen=True)
class StatedStep:
    """A row with what it stands for."""

    cells: Mapping[str, str]
    scenario: Scenario
    workload: Workload
    node: NodeSpec

    @property
    def size(self) -> ClusterSize:
        """The cluster of the run."""
        nodes, each = count(self.cells, "nodes"), count(self.cells, "gpus_per_node")
        return ClusterSize(nodes * each, nodes, each)

    @property
    def measured_s(self) -> float | None:
        """Published time of the step; seconds."""
        return positive(self.cells, "step_s")

    def other_networks(self) -> tuple[StatedStep, ...]:
        """Return the step with the slowest and the fastest network that such nodes have.

        None where the source states its network, or where there is one node.
        """
        if "network" not in self.cells["presumed"] or self.size.nodes == 1:
            return ()
        names = usual_networks().get(self.cells["gpu"].partition("-")[0], ())
        changed = ({**self.cells, "network": name} for name in names)
        return tuple(replace(self, cells=cells, node=_node(cells)) for cells in changed)

    def is_same_setup(self, other: StatedStep) -> bool:
        """Whether both were predicted alike: they differ in what was measured, or in remarks."""
        return all(
            text == other.cells[name] for name, text in self.cells.items() if name not in MEASURED
        )

    def likeness(self, other: StatedStep) -> int | None:
        """How many columns agree that decide about compute; None: too few to scale by it."""
        agree = [self.cells[name] == other.cells[name] for name in COMPUTE_LIKENESS]
        return sum(agree) if all(agree[:HAVE_TO_AGREE]) else None


@cache
def usual_networks() -> Mapping[str, Sequence[str]]:
    """Slowest and fastest network of published machines, by kind of GPU."""
    kinds: Mapping[str, Any] = read_yaml(Path(__file__).with_name("usual_networks.yaml"))
    return {kind: (ends["slowest"], ends["fastest"]) for kind, ends in kinds.items()}


def read_step(cells: Mapping[str, str]) -> StatedStep:
    """Read a row.

    Raises `InputError`: what no scenario can express.
    """
    return StatedStep(cells, _scenario(cells), _workload(cells), _node(cells))


def count(cells: Mapping[str, str], name: str) -> int:
    """Read a whole number from 1 on."""
    text = cells[name]
    if not text.isdecimal() or not 1 <= int(text) < 10**9:
        raise InputError(Fault(name, repr(text), "a whole number, 1 or more"))
    return int(text)


def positive(cells: Mapping[str, str], name: str) -> float | None:
    """Read a number above zero; None for an empty cell."""
    if not cells[name]:
        return None
    value = float(cells[name])
    if not 0 < value < math.inf:
        raise InputError(Fault(name, repr(cells[name]), "a number above zero"))
    return value


def _scenario(cells: Mapping[str, str]) -> Scenario:
    strategy: Any = parse_yaml(cells["strategy"])
    accumulate = count(cells, "accumulate")
    if accumulate > 1:
        strategy = {**strategy, "accumulate": accumulate}
    precision, _, recipe = cells["precision"].partition(" ")
    compute: dict[str, Any] = {
        "precision": precision,
        "optimizer": "adamw",
        "optimizer_kernels": cells["optimizer_kernels"],
        "fused_attention": cells["attention"] != "materialised",
        "compiled": COMPILED.get(cells["compiled"], cells["compiled"]),
        "master_weights": cells["master_weights"] == "1",
    }
    if recipe:
        compute["fp8"] = parse_yaml(recipe)
    if cells["recompute"] != "none":
        compute["recompute"] = parse_yaml(cells["recompute"])
    document = {
        "perfmodel": 1,
        "model": {"name": STAND_IN, "dtype": cells["dtype"]},
        "compute": compute,
        "strategy": strategy,
        "cluster": {
            "node": cells["gpu"],
            "nodes": count(cells, "nodes"),
            "gpus_per_node": count(cells, "gpus_per_node"),
            "fabric": "rail-optimised" if count(cells, "nodes") > 1 else None,
        },
        "training": {"batch_per_gpu": count(cells, "batch")},
    }
    return validate_document(Scenario, document)


@lru_cache(maxsize=256)
def _named_node(gpu: str, gpus: int, intra: str, network: str) -> NodeSpec:
    return describe(gpu, gpus=gpus, intra=intra or "none", network=network or None).node


def _node(cells: Mapping[str, str]) -> NodeSpec:
    several = count(cells, "nodes") > 1
    return _named_node(
        cells["gpu"], count(cells, "gpus_per_node"), cells["intra"],
        cells["network"] if several else "",
    )  # fmt: skip


_SWITCHES = ("tied", "dropout", "fused_norms")
_SIZES = ("layers", "width", "heads", "kv_heads", "mlp_width", "vocabulary", "sequence_length")


def _workload(cells: Mapping[str, str]) -> Workload:
    sizes = tuple(count(cells, name) for name in _SIZES)
    workload = _built(
        cells["model"], cells["family"], sizes, cells["dtype"],
        tuple(name for name in _SWITCHES if cells[name] == "1"),
    )  # fmt: skip
    return only_blocks_fuse(workload) if cells["compiled"] == "blocks" else workload


@lru_cache(maxsize=256)
def _built(
    name: str, family: str, sizes: tuple[int, ...], dtype: str, switches: tuple[str, ...]
) -> Workload:
    layers, width, heads, kv_heads, mlp_width, vocabulary, tokens = sizes
    if family == "bert":
        if (layers, width) != (24, 1024):
            raise InputError(Fault("model", name, "BERT-Large"))
        return bert("bert-large", dtype=dtype, sequence_length=tokens, whole_head=True)
    if family == "gpt":
        shape = GptShape(layers, width, heads, tokens, vocabulary)
        return gpt(
            name, dtype=dtype, sequence_length=tokens, shape=shape, dropout="dropout" in switches
        )
    if family == "llama":
        sizes_of = DecoderShape(
            layers,
            width,
            heads,
            kv_heads,
            mlp_width,
            vocabulary,
            tokens,
            tied="tied" in switches,
            fused_norms="fused_norms" in switches,
        )
        return llama(name, dtype=dtype, sequence_length=tokens, shape=sizes_of)
    raise InputError(Fault("family", repr(family), "gpt, llama or bert"))

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
from perfmodel.scenario.sections.model import AdaptersSection
from perfmodel.studies.run.resolve.training_job import expert_ranks_per_node, layout_of
from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.templates.build import load_node, template_names
from perfmodel.topology.templates.spec import NodeSpec
from perfmodel.units import parse_power
from perfmodel.workload.memory.blocks import only_blocks_fuse
from perfmodel.workload.model import Workload
from perfmodel.workload.model_changes import (
    add_adapters,
    fuse_by_hand,
    pack_documents,
)
from perfmodel.workload.shard import WHOLE, Shard
from perfmodel.workload.zoo.bert import bert
from perfmodel.workload.zoo.bert_block import BertShape
from perfmodel.workload.zoo.convolution_nets import resnet
from perfmodel.workload.zoo.decoder_sizes import EXPERT_SHAPES, SHAPES, DecoderShape, expert_family
from perfmodel.workload.zoo.expert_decoder import expert_decoder
from perfmodel.workload.zoo.expert_settings import ExpertSettings
from perfmodel.workload.zoo.llama import llama
from perfmodel.workload.zoo.text_decoder import gpt, gpt_shape
from reports.validation.strategies.amoebanet import amoebanet
from reports.validation.strategies.unfused_loss import keep_loss_apart

STAND_IN = "gpt2"
"""Model that the scenario names: what is trained is made of the row's own sizes."""
COMPUTE_LIKENESS = (
    "gpu",
    "precision",
    "compiled",
    "attention",
    "dtype",
    "unlike",
    "model",
    "sequence_length",
    "batch",
    "recompute",
    "optimizer_kernels",
    "parallel",
)
"""Columns that decide how far compute is off: the first six have to agree, and the more of the
others do, the better, where one row's compute is scaled to another's."""
ATTENTION: Mapping[str, bool | str] = {
    "materialised": False,
    "flash-1": "flash_1",
    "flash-2": "flash_2",
    "cudnn": "cudnn",
}
COMPILED = {"0": False, "1": True, "graphs": True}
FUSING = {"blocks": only_blocks_fuse, "by_hand": fuse_by_hand, "loss_apart": keep_loss_apart}
"""What of a workload is fused, where it is not all or nothing."""
FUSED_AS = {"blocks": "blocks", "by_hand": "by_hand", "loss_apart": "by_hand"}
"""What `compute.compiled` takes for these."""
HAVE_TO_AGREE = 6
LIMITED = " at "
"""Between a GPU and the limit of its power, where there is one: "h100-sxm5-96gb at 500 W"."""
MEASURED = frozenset(
    {"step_s", "peak_GB", "memory_kind", "unlike", "presumed", "trust", "source", "note"}
)
"""Columns of what was measured, and remarks."""


@dataclass(frozen=True)
class StatedStep:
    """A row with what it stands for.

    `share`: what one rank of a tensor, context and expert group holds of `workload`.
    """

    cells: Mapping[str, str]
    scenario: Scenario
    workload: Workload
    share: Workload
    node: NodeSpec

    @property
    def size(self) -> ClusterSize:
        """The cluster of the run."""
        nodes, each = count(self.cells, "nodes"), count(self.cells, "gpus_per_node")
        return ClusterSize(gpus_of(self.cells), nodes, each)

    @property
    def model(self) -> str:
        """Name of the model, and how long its sequences are."""
        tokens = self.workload.sample.tokens
        return self.cells["model"] + (f", {tokens} tokens" if tokens else "")

    @property
    def replicas(self) -> int:
        """How many of the model there are: what is left of the GPUs beside its split."""
        return self.size.gpus // self.scenario.parallel.gpus_per_replica

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
        return is_same(self.cells, other.cells)

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
    scenario = _scenario(cells)
    whole = _workload(cells)
    shard = layout_of(scenario).shard
    share = whole if shard.is_whole else _workload(cells, shard, _ranks_per_node(cells, scenario))
    return StatedStep(cells, scenario, whole, share, _node(cells))


def count(cells: Mapping[str, str], name: str) -> int:
    """Read a whole number from 1 on."""
    text = cells[name]
    if not text.isdecimal() or not 1 <= int(text) < 10**9:
        raise InputError(Fault(name, repr(text), "a whole number, 1 or more"))
    return int(text)


def gpus_of(cells: Mapping[str, str]) -> int:
    """GPUs of all nodes."""
    return count(cells, "nodes") * count(cells, "gpus_per_node")


def positive(cells: Mapping[str, str], name: str) -> float | None:
    """Read a number above zero; None for an empty cell."""
    if not cells[name]:
        return None
    value = float(cells[name])
    if not 0 < value < math.inf:
        raise InputError(Fault(name, repr(cells[name]), "a number above zero"))
    return value


def passes_of(cells: Mapping[str, str]) -> int:
    """Passes of blocks of a step of a split model, which its plan grows with; 0: it is not."""
    return count(cells, "layers") * count(cells, "accumulate") if cells["parallel"] else 0


def is_same(cells: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Whether rows are predicted alike: they differ in what was measured, or in remarks."""
    return all(text == others[name] for name, text in cells.items() if name not in MEASURED)


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
        "fused_attention": ATTENTION.get(cells["attention"], True),
        "compiled": COMPILED.get(cells["compiled"], FUSED_AS.get(cells["compiled"])),
        "master_weights": cells["master_weights"] == "1",
        "cuda_graphs": cells["compiled"] == "graphs",
    }
    if recipe:
        compute["fp8"] = parse_yaml(recipe)
    if cells["recompute"] != "none":
        compute["recompute"] = parse_yaml(cells["recompute"])
    model: dict[str, Any] = {"name": STAND_IN, "dtype": cells["dtype"]}
    shared: Any = parse_yaml(cells["experts"]) if cells["experts"] else {}
    if "tensor" in shared:  # which ranks share an expert is the parallel layout's, too
        model["experts"] = {"tensor": shared["tensor"]}
    document = {
        "perfmodel": 1,
        "model": model,
        "compute": compute,
        "strategy": strategy,
        "cluster": {
            "node": cells["gpu"].partition(LIMITED)[0],
            "nodes": count(cells, "nodes"),
            "gpus_per_node": count(cells, "gpus_per_node"),
            "fabric": _fabric(cells),
        },
        "training": {"batch_per_gpu": count(cells, "batch")},
        "parallel": parse_yaml(cells["parallel"]) if cells["parallel"] else {},
    }
    return validate_document(Scenario, document)


@lru_cache(maxsize=256)
def _named_node(text: str, gpus: int, intra: str, network: str) -> NodeSpec:
    gpu, _, limit = text.partition(LIMITED)
    node = describe(gpu, gpus=gpus, intra=intra or "none", network=network or None).node
    if not limit:
        return node
    return node.model_copy(update={"power_limit": parse_power(limit, "gpu")})


def _fabric(cells: Mapping[str, str]) -> Any:
    """Fabric of a scenario: with its kind where the row says that, for chips of a torus."""
    if count(cells, "nodes") == 1:
        return None
    return parse_yaml(cells["network"]) if "kind:" in cells["network"] else "rail-optimised"


def _node(cells: Mapping[str, str]) -> NodeSpec:
    if cells["intra"] in template_names():
        return load_node(cells["intra"])
    several = count(cells, "nodes") > 1
    return _named_node(
        cells["gpu"],
        count(cells, "gpus_per_node"),
        cells["intra"],
        cells["network"] if several else "",
    )


DECODERS = {"llama": DecoderShape(1, 1, 1, 1, 1, 1, 1), "nemotron": SHAPES["nemotron4-15b"]}
"""What a family of decoders is like, whatever its sizes."""
_SWITCHES = ("tied", "dropout", "fused_norms")
_SIZES = ("layers", "width", "heads", "kv_heads", "mlp_width", "vocabulary", "sequence_length")


def _ranks_per_node(cells: Mapping[str, str], scenario: Scenario) -> int | None:
    nodes, each = count(cells, "nodes"), count(cells, "gpus_per_node")
    return expert_ranks_per_node(scenario, ClusterSize(gpus_of(cells), nodes, each))


def _workload(
    cells: Mapping[str, str], shard: Shard = WHOLE, ranks_per_node: int | None = None
) -> Workload:
    sizes = tuple(count(cells, name) for name in _SIZES)
    switches = tuple(name for name in _SWITCHES if cells[name] == "1")
    name, family, dtype = cells["model"], cells["family"], cells["dtype"]
    if family == "experts":
        norms = "fused_norms" in switches
        workload = _built_experts(
            name, sizes, dtype, norms, cells["experts"], shard, ranks_per_node
        )
    else:
        workload = _built(name, family, sizes, dtype, switches, shard)
    return _as_trained(workload, cells)


def _as_trained(workload: Workload, cells: Mapping[str, str]) -> Workload:
    """Put documents into sequences, add adapters, and leave out what is not fused."""
    if cells["document_length"]:
        workload = pack_documents(workload, count(cells, "document_length"))
    if cells["adapters"]:
        section: Any = parse_yaml(cells["adapters"])
        workload = add_adapters(
            workload, AdaptersSection(**{**section, "targets": tuple(section["targets"])})
        )
    fuse = FUSING.get(cells["compiled"])
    return workload if fuse is None else fuse(workload)


@lru_cache(maxsize=256)
def _built(
    name: str,
    family: str,
    sizes: tuple[int, ...],
    dtype: str,
    switches: tuple[str, ...],
    shard: Shard,
) -> Workload:
    layers, width, heads, kv_heads, mlp_width, vocabulary, tokens = sizes
    if family == "bert":
        sizes_of_bert = BertShape(layers, width, heads, vocabulary=vocabulary, mlp_width=mlp_width)
        return bert(
            name,
            dtype=dtype,
            sequence_length=tokens,
            whole_head=True,
            shape=sizes_of_bert,
            shard=shard,
        )
    if family == "gpt":
        shape = gpt_shape(layers, width, heads, tokens, vocabulary)
        return gpt(
            name,
            dtype=dtype,
            sequence_length=tokens,
            shape=shape,
            dropout="dropout" in switches,
            shard=shard,
        )
    if family == "amoebanet":
        return amoebanet(layers, width, dtype=dtype, image_size=tokens)
    if family == "resnet":
        return resnet(layers, dtype=dtype, image_size=tokens)
    if family not in DECODERS:
        allowed = "gpt, llama, nemotron, bert, resnet, amoebanet or experts"
        raise InputError(Fault("family", repr(family), allowed))
    of_family = replace(
        DECODERS[family],
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=mlp_width,
        vocabulary=vocabulary,
        positions=tokens,
    )
    decoder = replace(
        of_family,
        tied="tied" in switches,
        fused_norms=of_family.fused_norms or "fused_norms" in switches,
    )
    return llama(name, dtype=dtype, sequence_length=tokens, shape=decoder, shard=shard)


@lru_cache(maxsize=64)
def _built_experts(
    name: str,
    sizes: tuple[int, ...],
    dtype: str,
    fused_norms: bool,
    experts: str,
    shard: Shard,
    ranks_per_node: int | None,
) -> Workload:
    """Build a model of the zoo with another depth and length of sequences.

    `experts`: "model of the zoo" and how experts run, as YAML; `dense_first`: layers without
        experts, where these are not as many as those of the zoo's model.
    `shard`: settings between ranks act on shares alone.
    """
    settings: Any = parse_yaml(experts)
    model, dense_first = settings.pop("model"), settings.pop("dense_first", None)
    if model not in EXPERT_SHAPES:
        raise InputError(Fault("experts.model", repr(model), "a model of experts of the zoo"))
    if shard.is_whole:
        settings = {key: settings[key] for key in settings.keys() & {"implementation"}}
    if ranks_per_node is not None:
        settings["ranks_per_node"] = ranks_per_node
    zoo = EXPERT_SHAPES[model]
    layers, tokens = sizes[0], sizes[-1]
    routed = zoo.routed if dense_first is None else replace(zoo.routed, dense_first=dense_first)
    decoder = replace(zoo.decoder, layers=layers)
    decoder = replace(decoder, fused_norms=fused_norms or decoder.fused_norms)
    shape = replace(zoo, decoder=decoder, routed=routed)
    return expert_decoder(
        name,
        dtype=dtype,
        sequence_length=tokens,
        shape=shape,
        family=expert_family(model),
        settings=ExpertSettings(**settings),
        shard=shard,
    )

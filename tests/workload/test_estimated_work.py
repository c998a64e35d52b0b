"""Unknown is not zero: what a file leaves out is estimated, and the range holds what is true."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.scenario import load_scenario
from perfmodel.studies.run.run import run_scenario
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload import load_workload
from perfmodel.workload.model import Layer, ParameterTensor, Workload
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo import build_model, zoo_model, zoo_names
from tests.activations import activation_bytes

Writer = Callable[[Workload], Workload]


def stripped(model: Workload, folder: Path, *, shapes: bool = True, name: str = "own") -> str:
    """A file of a model of the zoo that states parameters and operations alone."""
    trained = set(model.ready_order)
    parameters = [
        {"name": tensor.name, "requires_grad": index in trained}
        | (
            {"shape": list(tensor.shape)}
            if shapes or len(tensor.shape) < 2
            else {"numel": tensor.numel}
        )
        for index, tensor in enumerate(model.tensors)
    ]
    layers = [
        {
            "name": layer.name,
            "parameters": [model.tensors[index].name for index in layer.tensors],
            "matmul_flops": layer.matmul_flops,
            "kernels": layer.kernels,
        }
        for layer in model.layers
    ]
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"perfmodel": 1, "parameters": parameters, "layers": layers}))
    return str(path)


def ends(model: Workload) -> list[float]:
    return [activation_bytes(model, 8, "bf16", kept_share=end) for end in model.kept_range]


UNLIKE = frozenset(
    name for name in zoo_names() if name.startswith(("gemma2", "gemma3", "t5", "efficientnet"))
)
"""Models that keep more by a norm after each branch, by SiLU and squeezed excitation, or less as a
decoder looks at more tokens than it has: a file that states operations alone tells none of it."""

OF_ROWS = {
    name for name in zoo_names() if (model := zoo_model(name)) is not None and model.kind == "row"
}
"""Models whose samples have no size to change."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(UNLIKE))
def test_models_unlike_those_of_the_shares_are_near_the_range(name: str, tmp_path: Path) -> None:
    is_image = zoo_model(name).kind == "image"
    model = build_model(name, **{"image_size" if is_image else "sequence_length": 384})
    low, high = ends(load_workload(stripped(model, tmp_path)))
    assert low / 1.4 <= activation_bytes(model, 8, "bf16") <= 1.3 * high


OF_EXPERTS = {name for name in zoo_names() if zoo_model(name).has_experts}
"""A file does not say which of its weights a token passes: for these it cannot tell."""


def family_ends() -> list[str]:
    """Names of the first and the last model of each family of the zoo, by the word they share.

    Without GPT-2, whose GELU is eight operations, of which a file of products says nothing.
    """
    families: dict[str, list[str]] = {}
    for name in zoo_names():
        if name not in UNLIKE | OF_EXPERTS | OF_ROWS and not name.startswith("gpt2"):
            families.setdefault(re.split(r"[-\d]", name)[0], []).append(name)
    return sorted({name for names in families.values() for name in (names[0], names[-1])})


@pytest.mark.slow
@pytest.mark.parametrize("name", family_ends())
def test_the_range_holds_the_activations_of_the_zoo(name: str, tmp_path: Path) -> None:
    """Of each family, at another size of sample than the shares were taken at."""
    pixels = 322 if "patch14" in name else 320
    is_image = zoo_model(name).kind == "image"
    small = {"image_size": pixels} if is_image else {"sequence_length": 384}
    model = build_model(name, **small)  # type: ignore[arg-type]
    own = load_workload(stripped(model, tmp_path))
    low, high = ends(own)
    true = activation_bytes(model, 8, "bf16")
    assert low <= true <= high
    assert 1.05 < high / low < 2.6
    assert activation_bytes(own, 8, "bf16") == pytest.approx(true, rel=0.35)
    assert "states no activations" in own.notes[0]


@pytest.mark.slow
def test_the_range_holds_most_where_weights_have_no_shapes(tmp_path: Path) -> None:
    inside = 0
    names = [name for name in zoo_names() if name not in OF_EXPERTS][::16]
    for name in names:
        model = build_model(name)
        low, high = ends(load_workload(stripped(model, tmp_path, shapes=False, name=name)))
        inside += low <= activation_bytes(model, 8, "bf16") <= high
    assert inside >= 0.7 * len(names)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "bert-large", "megatron-1.7b", "llama3-8b"])
def test_the_time_of_a_step_is_near_that_of_the_zoo(name: str, tmp_path: Path) -> None:
    """Traffic is estimated too: without it a step would look up to 40 % shorter."""
    model = build_model(name)
    own = load_workload(stripped(model, tmp_path))
    gpu = load_gpu("a100-sxm4-80gb")

    def forward_s(workload: Workload) -> float:
        times = layer_times(workload, gpu, batch=4, precision="bf16")
        return float(times.forward_s.sum())

    assert forward_s(own) == pytest.approx(forward_s(model), rel=0.3)


def test_what_is_stated_stays(tmp_path: Path) -> None:
    layers = [
        {
            "name": "a",
            "parameters": ["w"],
            "matmul_flops": 1e9,
            "vector": "8 MB",
            "operands": "2 MB",
            "activations": "4 MB",
        }
    ]
    path = tmp_path / "own.json"
    path.write_text(
        json.dumps({"parameters": [{"name": "w", "shape": [64, 64]}], "layers": layers})
    )
    (layer,) = load_workload(str(path)).layers
    assert (layer.vector_bytes, layer.matmul_bytes, layer.saved_elements) == (8e6, 2e6, 1e6)
    assert load_workload(str(path)).notes == ()
    assert load_workload(str(path)).kept_range == (1.0, 1.0)


SCENARIO = """# Does my own model fit?
perfmodel: 1
model: {{file: own.json}}
compute: {{precision: fp32, optimizer: adamw{times}}}
cluster: {{node: dgx1-v100, nodes: 2, fabric: one-switch}}
training: {{batch_per_gpu: {batch}}}
"""


def answer(folder: Path, batch: int, times: str = ""):  # type: ignore[no-untyped-def]
    path = folder / "fit.yaml"
    path.write_text(SCENARIO.format(batch=batch, times=times))
    return run_scenario(load_scenario(path))


def test_a_model_of_operations_alone_does_not_fit_where_the_same_of_the_zoo_does_not(
    tmp_path: Path,
) -> None:
    stripped(build_model("gpt2-medium"), tmp_path)
    result = answer(tmp_path, 64)
    memory = result.main.memory
    assert not memory.may_fit
    assert memory.low_bytes < memory.total_bytes < memory.high_bytes
    assert any("states no activations" in line for line in result.assumptions)


def test_what_is_not_known_is_no_promise(tmp_path: Path) -> None:
    """Times alone bound activations by what the memory can take in that time."""
    model = Workload("own", (ParameterTensor("l.weight", (64, 64)),), (Layer("l", (0,)),))
    stripped(replace(model), tmp_path)
    for forward, fits in (("1 us", True), ("1 s", False)):
        (tmp_path / "times.csv").write_text(f"name,forward,backward\nl,{forward},1 ms\n")
        memory = answer(tmp_path, 1, ", source: file, times: times.csv").main.memory
        assert memory.may_fit
        assert memory.fits == fits
        assert any("activations" in line for line in memory.advice) != fits
    times = {"layers": [{"name": "l", "forward": "1 s", "backward": "1 s"}], "activations": "3 GB"}
    (tmp_path / "times.yaml").write_text(json.dumps(times))
    memory = answer(tmp_path, 1, ", source: file, times: times.yaml").main.memory
    assert memory.activations_bytes == 3e9
    assert memory.fits
    assert not memory.is_estimated
    assert memory.low_bytes == memory.high_bytes == memory.total_bytes

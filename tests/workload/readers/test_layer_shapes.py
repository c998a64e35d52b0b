"""Layers of a model file that state the shape of their matrix kernel, and the traffic beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from perfmodel.workload import Workload, load_workload
from perfmodel.workload.readers.spec import AttentionSpec, ConvolutionSpec, LayerSpec, ProductSpec
from tests.workload.readers.toy_model import faults

Write = Callable[[str, str], str]

PRODUCT = {"rows": 64, "columns": 96, "depth": 32}
CONV = {
    "in_channels": 8,
    "out_channels": 64,
    "in_size": [224, 224],
    "out_size": [112, 112],
    "kernel": [7, 7],
}
ATTENTION = {"tokens": 64, "heads": 8, "head_size": 16, "causal": True}
LAYER = {"vector": "8 KiB", "norm": "1 KiB", "fused": "4 KiB"}
KINDS = {
    "product": (
        PRODUCT,
        ProductSpec,
        {
            "rows": 65,
            "columns": 97,
            "depth": 33,
            "count": 2,
            "bias": True,
            "activations": True,
        },
    ),
    "convolution": (
        CONV,
        ConvolutionSpec,
        {
            "in_channels": 16,
            "out_channels": 128,
            "in_size": [225, 224],
            "out_size": [112, 113],
            "kernel": [7, 5],
            "groups": 2,
            "bias": True,
        },
    ),
    "attention": (
        ATTENTION,
        AttentionSpec,
        {
            "tokens": 65,
            "heads": 16,
            "head_size": 32,
            "kv_heads": 2,
            "causal": False,
            "keys": 128,
            "window": 16,
            "value_head_size": 8,
            "dropout": True,
        },
    ),
}


def text_of(layer: dict[str, Any], **more: Any) -> str:
    parameters = [{"name": "w", "shape": [4, 4]}]
    layers = [{"name": "l", "parameters": ["w"], **layer}]
    return yaml.safe_dump({"parameters": parameters, "layers": layers, **more})


@pytest.mark.parametrize("kind", KINDS)
def test_each_size_of_a_shape_changes_the_layer(write: Write, kind: str) -> None:
    base, spec, changes = KINDS[kind]
    assert set(changes) == set(spec.model_fields)
    shapes = [base, *({**base, name: value} for name, value in changes.items())]
    layers = [load_workload(write("m.yaml", text_of({kind: shape}))).layers for shape in shapes]
    assert all(layers[i] != layers[j] for i in range(len(layers)) for j in range(i))


def test_each_field_of_a_layer_changes_it(write: Write) -> None:
    changes: dict[str, Any] = {
        "name": "k",
        "kernels": 2,
        "matmul_flops": 1e6,
        "vector": "9 KiB",
        "operands": "1 MiB",
        "activations": "1 MiB",
        "product": PRODUCT,
        "convolution": CONV,
        "attention": ATTENTION,
        "weights": 17,
        "norm": "2 KiB",
        "wide_norm": True,
        "wide": "1 KiB",
        "fused": "3 KiB",
        "fused_kernels": 3,
        "stream": "1 KiB",
        "copied": "1 KiB",
        "fixed": "1 KiB",
        "gradients": 1,
    }
    times = {"parameters", "forward", "backward"}  # of `test_load` and `test_layer_times`
    assert set(changes) == set(LayerSpec.model_fields) - times

    def read(layer: dict[str, Any]) -> Workload:
        return load_workload(write("m.yaml", text_of(layer)))

    models = [read(LAYER), *(read({**LAYER, name: value}) for name, value in changes.items())]
    layers = [model.layers for model in models]
    assert all(layers[i] != layers[j] for i in range(len(layers)) for j in range(i))


def test_operations_are_those_of_the_shape(write: Write) -> None:
    """ResNet's first convolution: 118 million multiplications and additions of a picture."""
    first = {"convolution": {**CONV, "in_channels": 3}}
    (layer,) = load_workload(write("m.yaml", text_of(first))).layers
    assert (layer.kind, layer.matmul_flops) == ("conv", 2 * 118_013_952)


@pytest.mark.parametrize(
    ("layer", "more", "text"),
    [
        ({"product": PRODUCT, "attention": ATTENTION}, {}, "one of product and attention"),
        ({"vector": "1 KiB", "norm": "600 B", "wide": "600 B"}, {}, "parts of vector"),
        ({"norm": "1 B"}, {}, "parts of vector"),
        ({"convolution": {**CONV, "groups": 3}}, {}, "groups that divide 8"),
        ({"convolution": {**CONV, "out_channels": 63, "groups": 2}}, {}, "and 63 output"),
        ({"product": PRODUCT, "matmul_flops": 0}, {}, "more than 0 matmul_flops"),
        ({"vector": "1 KiB", "fused_kernels": 2}, {}, "fused beside fused_kernels"),
        ({"vector": "1 KiB", "wide_norm": True}, {}, "norm beside wide_norm"),
        (
            {},
            {"buffers": "1 KiB", "buffer_groups": [{"dtype": "fp32", "tensors": 1, "size": "4 B"}]},
            "buffers or buffer_groups",
        ),
    ],
)
def test_what_a_layer_cannot_have(
    write: Write, layer: dict[str, Any], more: dict[str, Any], text: str
) -> None:
    (fault,) = faults(load_workload, write("m.yaml", text_of(layer, **more)))
    assert text in fault.allowed

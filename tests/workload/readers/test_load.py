"""Models by name, and a user's own from files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.workload import load_workload, read_layer_times
from perfmodel.workload.readers.layer_times import read_stated
from tests.workload.readers.toy_model import CSV, YAML, faults


def test_a_name_of_the_zoo():
    assert load_workload("bert-base", sequence_length=64, dtype="bf16").nbytes == 2 * 109482240


def test_csv(write):
    workload = load_workload(write("toy.csv", CSV))
    assert workload.name == "toy"
    assert [(t.name, t.shape, t.dtype) for t in workload.tensors] == [
        ("conv.weight", (64, 3, 7, 7), "fp32"),
        ("conv.bias", (64,), "fp32"),
        ("table.weight", (10, 4), "bf16"),
        ("fc.weight", (10, 64), "fp32"),
        ("fc.bias", (10,), "fp32"),
    ]
    # without layers: the reverse of registration, frozen parameters left out
    assert workload.ready_order == (4, 3, 1, 0)
    assert [layer.name for layer in workload.layers] == ["conv", "fc"]


def test_yaml(write):
    path = write("toy.yaml", YAML)
    workload = load_workload(path)
    assert (workload.name, workload.sample.unit, workload.buffer_bytes) == ("toy", "image", 1024)
    assert workload.tensors[1].nbytes == 128
    assert workload.ready_order == (3, 0, 1)
    times = read_layer_times(path, workload)
    np.testing.assert_allclose(times.forward_s, [1.5e-3, 1e-5, 1e-4])
    np.testing.assert_allclose(times.backward_s, [3e-3, 2e-5, 2e-4])
    assert (times.launch_s, times.optimizer_s) == (6e-6, 1e-3)
    assert read_stated(path).activations == 3 * 2**20
    assert list(times.forward_kernels) == [1, 1, 2]


def test_groups_by_column(write):
    rows = ["name,numel,layer", "a,1,x", "b,2,x", "c,3,y"]
    workload = load_workload(write("m.csv", "\n".join(rows)))
    assert [(layer.name, layer.tensors) for layer in workload.layers] == [
        ("x", (1, 0)),
        ("y", (2,)),
    ]


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), min_size=1, max_size=20))
def test_any_list_of_parameters_comes_back(tmp_path_factory, shapes):
    path = tmp_path_factory.mktemp("lists") / "m.csv"
    lines = [f"p{i},{'x'.join(map(str, shape))}" for i, shape in enumerate(shapes)]
    path.write_text("\n".join(["name,shape", *lines]), encoding="utf-8")
    workload = load_workload(str(path))
    assert [list(tensor.shape) for tensor in workload.tensors] == shapes
    assert workload.ready_order == tuple(reversed(range(len(shapes))))


@pytest.mark.parametrize(
    ("old", "new", "field", "line"),
    [
        ("numel: 64", "numel: 0", "parameters.1.numel", 5),
        ("numel: 64", "numel: .nan", "parameters.1.numel", 5),
        ("shape: 10x64", "shape: 10x-64", "parameters.3.shape", 7),
        ("name: frozen", "name: conv.bias", "parameters.2.name", 6),
        ("[fc.weight]", "[fc.wight]", "layers.2.parameters", 11),
        ("[fc.weight]", "[fc.weight, frozen]", "layers.2.parameters", 11),
        ("[fc.weight]", "[fc.weight, conv.bias]", "layers.2.parameters", 11),
        ("[fc.weight]", "[]", "layers", 8),
        ("forward: 10 us", "forward: 10", "layers.1.forward", 10),
        ("sample: image", "smaple: image", "smaple", 2),
        ("dtype: bf16", "dtype: int64", "parameters.1", 5),
    ],
)
def test_faults_of_a_yaml(write, old, new, field, line):
    found = faults(load_workload, write("bad.yaml", YAML.replace(old, new)))
    assert (field, line) in [(fault.field, fault.line) for fault in found]


def test_an_empty_model(write):
    assert [f.field for f in faults(load_workload, write("m.yaml", "name: toy\n"))] == [
        "parameters"
    ]
    assert [f.field for f in faults(load_workload, write("m.yaml", ""))] == ["file"]


def test_names_and_paths_that_lead_nowhere(write):
    assert "did you mean 'resnet50'?" in faults(load_workload, "resnt50")[0].allowed
    assert "no readable file" in faults(load_workload, "models/mine.csv")[0].found
    assert ".csv" in faults(load_workload, write("model.txt", "name"))[0].allowed


def test_arguments_of_the_zoo_do_not_fit_a_file(write):
    path = write("toy.csv", CSV)
    with pytest.raises(InputError) as raised:
        load_workload(path, dtype="bf16", image_size=3)
    assert [fault.field for fault in raised.value.faults] == ["dtype", "image_size"]


def test_buffers_beyond_a_gpus_memory_are_refused(write):
    (fault,) = faults(load_workload, write("toy.yaml", YAML.replace("1 KiB", "1 PB")))
    assert (fault.field, fault.found) == ("buffers", "'1 PB'")
    assert fault.allowed == "at most 93.13 GiB"

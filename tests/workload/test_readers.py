"""A user's own model and times from files, and what is wrong with them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.workload import load_workload, times_from_file
from perfmodel.workload.readers.fields import parse_shape

CSV = """\
# exported by hand
name,shape,dtype,requires_grad,forward,backward_us
conv.weight,64x3x7x7,float32,true,1.2 ms,2400
conv.bias,(64),,,,
table.weight,"[10, 4]",torch.bfloat16,no,,
fc.weight,10x64,fp32,1,3 us,5
fc.bias,10,fp32,1,1 us,5
"""

YAML = """\
name: toy
sample: image
parameters:
  - {name: conv.weight, shape: [64, 3, 7, 7]}
  - {name: conv.bias, numel: 64, dtype: bf16}
  - {name: frozen, numel: 5, requires_grad: false}
  - {name: fc.weight, shape: 10x64}
layers:
  - {name: stem, parameters: [conv.weight, conv.bias], forward: 1.5 ms, backward: 3 ms}
  - {name: pool, forward: 10 us, backward: 20 us}
  - {name: head, parameters: [fc.weight], forward: 0.1 ms, backward: 0.2 ms, kernels: 2}
buffers: 1 KiB
launch: 6 us
optimizer: 1 ms
activations: 3 MiB
"""


@pytest.fixture
def write(tmp_path):
    def written(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return written


def faults(call, *arguments):
    with pytest.raises(InputError) as raised:
        call(*arguments)
    return raised.value.faults


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


def test_times_beside_the_parameters(write):
    path = write("toy.csv", CSV)
    times = times_from_file(path, load_workload(path))
    np.testing.assert_allclose(times.forward_s, [1.2e-3, 4e-6])
    np.testing.assert_allclose(times.backward_s, [2.4e-3, 10e-6])
    assert times.source == path


def test_yaml(write):
    path = write("toy.yaml", YAML)
    workload = load_workload(path)
    assert (workload.name, workload.sample, workload.buffer_bytes) == ("toy", "image", 1024)
    assert workload.tensors[1].nbytes == 128
    assert workload.ready_order == (3, 0, 1)
    times = times_from_file(path, workload)
    np.testing.assert_allclose(times.forward_s, [1.5e-3, 1e-5, 1e-4])
    np.testing.assert_allclose(times.backward_s, [3e-3, 2e-5, 2e-4])
    assert (times.launch_s, times.optimizer_s) == (6e-6, 1e-3)
    assert times.activation_bytes == 3 * 2**20
    assert list(times.forward_kernels) == [1, 1, 2]


def test_times_for_a_model_of_the_zoo(write):
    workload = load_workload("vgg16")
    rows = [f"{layer.name},{i} us,{2 * i} us" for i, layer in enumerate(workload.layers)]
    path = write("times.csv", "\n".join(["name,forward,backward", *rows]))
    times = times_from_file(path, workload)
    np.testing.assert_allclose(times.backward_s, 2e-6 * np.arange(len(rows)))
    assert not np.isnan(times.copy_Bps)
    lacking = write("less.csv", "\n".join(["name,forward,backward", *rows[1:], "nobody,1 s,1 s"]))
    found = faults(times_from_file, lacking, workload)
    assert [fault.field for fault in found] == ["name", "layers"]
    assert "'features.0'" in found[1].found


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
    ("text", "shape"),
    [("64x3", (64, 3)), ("(64,)", (64,)), ("torch.Size([2, 3])", (2, 3)), ("[]", ()),
     ("4 5", (4, 5)), ("2*3", (2, 3)), ([7, 1], (7, 1))],
)  # fmt: skip
def test_spellings_of_a_shape(text, shape):
    assert parse_shape(text) == shape


@pytest.mark.parametrize("text", ["", "0x3", "-1", "3.5", "nan", "a", "1e3", [1.5], [True]])
def test_shapes_that_are_none(text):
    with pytest.raises(ValueError, match="whole numbers above zero"):
        parse_shape(text)


def test_every_fault_of_a_csv_with_its_line_and_column(write):
    path = write(
        "bad.csv",
        "name,numel,dtype,forward\na,0,fp32,1.2\na,-3,fp31,-1 ms\n"
        "b,nan,int64,nan ms\n,5,fp32,1 ms,9\n",
    )
    found = [(fault.line, fault.field) for fault in faults(load_workload, path)]
    assert found == [
        (2, "numel"), (2, "forward"), (3, "numel"), (3, "dtype"), (3, "forward"), (3, "name"),
        (4, "numel"), (4, "forward"), (4, "dtype"), (5, "row"), (5, "name"),
    ]  # fmt: skip
    assert all(fault.file == path for fault in faults(load_workload, path))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "file"),
        ("name,numel\n", "file"),
        ("nme,numel\na,1\n", "header"),
        ("name\na\n", "header"),
        ("name,numel,numel\na,1,1\n", "header"),
        ("name,numel,forward,forward_us\na,1,1 s,1\n", "header"),
        ("name,numel,requires_grad\na,1,false\n", "requires_grad"),
        ("name,numel,requires_grad\na,1,perhaps\n", "requires_grad"),
        ("name,shape,numel\na,2x3,7\n", "numel"),
        ("name,shape\na,\n", "shape"),
        ("name,numel\na\n", "row"),
        ("name,numel,forward_us\na,1,inf\n", "forward_us"),
    ],
)
def test_one_fault_of_a_csv(write, text, field):
    assert field in [fault.field for fault in faults(load_workload, write("bad.csv", text))]


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


def test_layers_without_times(write):
    path = write("m.yaml", YAML.replace("forward: 10 us, ", ""))
    found = faults(times_from_file, path, load_workload(path))
    assert [(fault.field, fault.line) for fault in found] == [("layers.1.forward", 10)]


def test_names_and_paths_that_lead_nowhere(write):
    assert "did you mean 'resnet50'?" in faults(load_workload, "resnt50")[0].allowed
    assert "no readable file" in faults(load_workload, "models/mine.csv")[0].found
    assert ".csv" in faults(load_workload, write("model.txt", "name"))[0].allowed


def test_arguments_of_the_zoo_do_not_fit_a_file(write):
    path = write("toy.csv", CSV)
    with pytest.raises(InputError) as raised:
        load_workload(path, dtype="bf16", image_size=3)
    assert [fault.field for fault in raised.value.faults] == ["dtype", "image_size"]

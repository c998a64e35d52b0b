"""Measured layer times from CSV and YAML files."""

import numpy as np
import pytest

from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload import load_workload, read_layer_times
from tests.workload.readers.toy_model import CSV, YAML, faults


def test_times_beside_the_parameters(write):
    path = write("toy.csv", CSV)
    times = read_layer_times(path, load_workload(path))
    np.testing.assert_allclose(times.forward_s, [1.2e-3, 4e-6])
    np.testing.assert_allclose(times.backward_s, [2.4e-3, 10e-6])
    assert times.source == path


def test_times_for_a_model_of_the_zoo(write):
    workload = load_workload("vgg16")
    rows = [f"{layer.name},{i} us,{2 * i} us" for i, layer in enumerate(workload.layers)]
    path = write("times.csv", "\n".join(["name,forward,backward", *rows]))
    times = read_layer_times(path, workload)
    np.testing.assert_allclose(times.backward_s, 2e-6 * np.arange(len(rows)))
    assert not np.isnan(times.copy_Bps)
    lacking = write("less.csv", "\n".join(["name,forward,backward", *rows[1:], "nobody,1 s,1 s"]))
    found = faults(read_layer_times, lacking, workload)
    assert [fault.field for fault in found] == ["name", "layers"]
    assert "'features.0'" in found[1].found


def test_layers_without_times(write):
    path = write("m.yaml", YAML.replace("forward: 10 us, ", ""))
    found = faults(read_layer_times, path, load_workload(path))
    assert [(fault.field, fault.line) for fault in found] == [("layers.1.forward", 10)]


def test_the_step_of_the_optimizer_takes_its_traffic(write):
    """SGD with momentum: gradient, weight twice, state twice: 20 bytes an element of fp32."""
    workload = load_workload("resnet18")
    path = write(
        "times.csv",
        "name,forward,backward\n"
        + "".join(f"{layer.name},1 us,2 us\n" for layer in workload.layers),
    )
    gpu = load_gpu("v100-sxm2-32gb")
    times = read_layer_times(
        path, workload, gpu=gpu, optimizer="sgd-momentum", optimizer_kernels="fused"
    )
    elements = sum(tensor.numel for tensor in workload.tensors)
    expected_s = 20 * elements / (gpu.memory_Bps * gpu.memory_efficiency)
    assert times.optimizer_s == pytest.approx(expected_s, rel=1e-12)

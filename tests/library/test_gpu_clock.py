"""Times that kernels spend in instructions are shorter at a higher clock."""

import pytest

from perfmodel.library.model import library_on, load_library
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.gpus import load_gpu

BOOST_GHZ = {
    "p100-sxm2-16gb": 1.480,
    "v100-sxm2-16gb": 1.530,
    "t4": 1.590,
    "rtx-2080-ti": 1.545,
    "a100-sxm4-80gb": 1.410,
    "a30-pcie-24gb": 1.440,
    "a40": 1.740,
    "a10": 1.695,
    "rtx-3090": 1.695,
    "rtx-a6000": 1.800,
    "rtx-4090": 2.520,
    "l40s": 2.520,
    "l4": 2.040,
    "h100-sxm5-80gb": 1.980,
    "h100-pcie-80gb": 1.755,
    "b200-sxm-180gb": 1.965,
}
"""Boost clocks by NVIDIA's data sheets and white papers."""


@pytest.mark.parametrize("name", BOOST_GHZ)
def test_clock_behind_the_peak_is_that_of_the_data_sheet(name):
    assert load_gpu(name).clock_Hz == pytest.approx(BOOST_GHZ[name] * 1e9, rel=0.03)


def test_kernel_times_scale_with_the_clock_and_those_of_networks_do_not():
    library = load_library("nccl").model_copy(update={"variants": ()})
    slow, fast = (
        library_on(library, build_topology(template)) for template in ("dgx-a100", "dgx-h100")
    )
    for name, protocol in slow.protocols.items():
        other = fast.protocols[name]
        for field in ("launch", "unevenness", "each_peer"):
            longer = getattr(protocol, field)
            assert longer == pytest.approx(getattr(other, field) * 1.98 / 1.41, rel=0.01)
        assert protocol.step.nvlink == pytest.approx(other.step.nvlink * 1.98 / 1.41, rel=0.01)
        assert protocol.step.network == other.step.network
        if protocol.copy_rate is not None:
            assert protocol.copy_rate * 1.98 / 1.41 == pytest.approx(other.copy_rate, rel=0.01)


def test_a_library_without_a_clock_and_processes_on_cpus_keep_their_times():
    plain = load_library("plain")
    assert library_on(plain, build_topology("dgx-a100")).protocols == plain.protocols
    nccl = load_library("nccl").model_copy(update={"variants": ()})
    assert library_on(nccl, build_topology("cpu-loopback")).protocols == nccl.protocols

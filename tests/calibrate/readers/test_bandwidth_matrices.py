"""Matrices of p2pBandwidthLatencyTest and nvbandwidth, and files of other kinds."""

import json
import os
from pathlib import Path

import pytest

from perfmodel.calibrate.readers import read_files
from perfmodel.calibrate.readers.bandwidth_matrices import read_matrix_log
from perfmodel.calibrate.transfer.inputs import measure_links
from perfmodel.errors import InputError
from perfmodel.files.pasted_text import clean_characters, clean_lines
from perfmodel.topology.templates.build import build_topology


def read_matrices(text, file):
    return read_matrix_log(clean_lines(clean_characters(text)), file)


P2P = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, NVIDIA A100-SXM4-80GB, pciBusID: 7, pciDeviceID: 0, pciDomainID:0
Device: 1, NVIDIA A100-SXM4-80GB, pciBusID: b, pciDeviceID: 0, pciDomainID:0
P2P Connectivity Matrix
     D\\D     0     1
     0\t     1     1
     1\t     1     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 1575.10  17.65
     1  18.50 1594.01
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 1575.10  273.60
     1  273.60 1594.01
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   2.60   3.10
     1   3.20   2.61

   CPU     0      1
     0   3.22   2.40
     1   2.50   3.20
"""

NVBANDWIDTH = """nvbandwidth Version: v0.6
Device 0: NVIDIA A100-SXM4-80GB (00000000:07:00)
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     26.00     25.84

SUM host_to_device_memcpy_ce 51.84

Waived:
Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    273.60
 1    273.60       N/A

Running host_device_latency_sm.
memory latency SM CPU(row) <-> GPU(column) (ns)
           0
 0    772.58
"""


def test_p2p_matrices():
    apart, together, latency = read_matrices(P2P, "p2p.txt")
    assert not apart.p2p
    assert together.p2p
    assert together.devices == ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")
    assert together.values[0][1] == pytest.approx(273.6e9)
    assert latency.what == "latency"
    assert latency.values[1][0] == pytest.approx(3.2e-6)


def test_a_garbled_row_takes_no_matrix_away():
    """Of one row, and the first of two: what stands above and below is whole."""
    for cell in ("26.00", "273.60"):
        text = NVBANDWIDTH.replace(cell, "2b.00", 1)
        with pytest.raises(InputError, match="garbled"):
            read_matrices(text, "nvbandwidth.log")


def test_a_title_that_lost_its_unit_is_named_by_its_line():
    wrapped = P2P.replace(
        "P2P=Enabled Latency (P2P Writes) Matrix (us)", "P2P=Enabled Latency (P2P Writes) Matrix"
    )
    line = wrapped.splitlines().index("P2P=Enabled Latency (P2P Writes) Matrix") + 1
    with pytest.raises(InputError) as raised:
        read_matrices(wrapped, "p2p.txt")
    assert [(fault.file, fault.line) for fault in raised.value.faults] == [("p2p.txt", line)]


def test_empty_lines_between_rows_do_not_matter():
    doubled = NVBANDWIDTH.replace("\n", "\n\n")
    assert read_matrices(doubled, "a.log") == read_matrices(NVBANDWIDTH, "a.log")


def test_gpus_that_cannot_reach_each_other_are_no_peers_though_the_test_says_enabled():
    text = P2P.replace("P2P Connectivity", "Device=0 CANNOT Access Peer Device=1\nP2P Connectivity")
    assert not any(matrix.p2p for matrix in read_matrices(text, "p2p.txt"))


def test_nvbandwidth_as_text_and_as_json(tmp_path):
    host, gpus, latency = read_matrices(NVBANDWIDTH, "n.log")
    assert (host.ends, gpus.ends, latency.what) == ("host-gpu", "gpu-gpu", "latency")
    assert gpus.values[0] == (None, pytest.approx(273.6e9))
    assert latency.values == ((pytest.approx(772.58e-9),),)
    cases = [
        {
            "name": "device_to_device_memcpy_read_ce",
            "status": "Passed",
            "bandwidth_matrix": [["N/A", "273.6"], ["273.6", "N/A"]],
        },
        {"name": "all_to_host_memcpy_sm", "status": "Waived"},
    ]
    path = tmp_path / "n.json"
    path.write_text(json.dumps({"nvbandwidth": {"version": "v0.8", "testcases": cases}}))
    (found,) = read_files([path])
    assert [m.values for m in found.matrices] == [gpus.values]


@pytest.mark.parametrize("cut", [P2P.index("1  273.60"), P2P.index("273.60\n")])
def test_a_matrix_that_is_cut_off_is_refused(cut):
    with pytest.raises(InputError, match="cut off"):
        read_matrices(P2P[:cut], "p2p.txt")


def test_copies_say_what_a_link_carries():
    """273.6 GB/s is 1.14 times what NCCL can use of twelve NVLinks of an A100, as usual."""
    matrices = read_matrices(P2P, "p2p.txt") + read_matrices(NVBANDWIDTH, "n.log")
    seen, unused = measure_links(matrices, build_topology("dgx-a100"))
    factors = {one.parameter.where: one.log for one in seen}
    assert factors["nvlink"] == pytest.approx(0.0, abs=1e-6)
    assert factors["pcie"] == pytest.approx(0.0, abs=0.01)
    assert any("without peer access" in text for text in unused)
    assert any("latency" in text for text in unused)
    slow = read_matrices(P2P.replace("273.60", "136.80"), "p2p.txt")
    (nvlink,), _ = measure_links(slow, build_topology("dgx-a100"))
    assert nvlink.log == pytest.approx(-0.693, abs=0.001)


def test_matrices_of_more_gpus_than_a_host_has_are_refused():
    with pytest.raises(InputError, match="2 GPUs in"):
        measure_links(read_matrices(P2P, "p"), build_topology("dgx-a100", gpus_per_host=1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "an empty file"),
        ("<!DOCTYPE html>\n<html></html>", "an HTML page"),
        ("<topology version='2'/>", "XML"),
        ("      GPU0 GPU1\nGPU0  X  OK\nGPU1  OK  X\nLegend:\n", "nvidia-smi topo -p2p"),
        ("      GPU0 GPU1 CPU Affinity\nGPU0  X  NV12 0-63\nGPU1  NV12 X 0-63\n", "topo -m"),
        ('{"nccl_version": 22809, ', "no JSON"),
        ("hello\n", "text without a table or a matrix"),
        ("\x00\x01\x02 binary", "binary data"),
        ("[]", "file"),
    ],
)
def test_files_of_other_kinds_are_refused_with_a_reason(tmp_path, text, words):
    path = tmp_path / "what.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_files([path])


def test_all_faults_of_all_files_come_at_once(tmp_path):
    empty, page = tmp_path / "a.log", tmp_path / "b.log"
    empty.write_text("")
    page.write_text("<html>")
    with pytest.raises(InputError) as caught:
        read_files([empty, page])
    assert [fault.file for fault in caught.value.faults] == [str(empty), str(page)]


def test_real_files_are_read():
    folder = os.environ.get("PERFMODEL_SAMPLES")
    if not folder:
        pytest.skip("PERFMODEL_SAMPLES names no folder with logs of other people")
    names = ["nccl_tests_pkb.txt", "nccl_tests_superbench_a100.log", "nvbandwidth.log"]
    small, large, links = read_files([Path(folder) / name for name in names])
    assert [(s.op, s.ranks, s.nodes, len(s.rows)) for s in small.sweeps] == [
        ("all_reduce", 2, 2, 11)
    ] * 2
    assert [(s.op, s.ranks, s.nodes, len(s.rows)) for s in large.sweeps] == [
        ("all_reduce", 8, 1, 32)
    ] * 2
    assert large.sweeps[0].rows[-1].time_s == pytest.approx(63896e-6)
    assert len(links.matrices) == 15
    with pytest.raises(InputError, match="topo -p2p"):
        read_files([Path(folder) / "nvidia_smi_topo_p2p.txt"])


# ---------------------------------------------------------------- as people paste them

EIGHT = [f"{20 + n}.25" for n in range(8)]
WIDE = (
    "Running host_to_device_memcpy_ce.\n"
    "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n"
    + " ".join(f"{n:>9}" for n in range(8)).rjust(90)
    + "\n 0 "
    + " ".join(f"{rate:>9}" for rate in EIGHT).rjust(87)
    + "\n\nSUM host_to_device_memcpy_ce 190.00\n"
)


def test_a_log_without_its_version_or_quoted_is_read():
    quoted = "".join(f"> {line}\n" for line in NVBANDWIDTH.splitlines()[2:])
    assert [m.test for m in read_matrices(quoted, "n")] == [
        "host_to_device_memcpy_ce",
        "device_to_device_memcpy_read_ce",
        "host_device_latency_sm",
    ]
    lost = NVBANDWIDTH.replace("Running host_to_device_memcpy_ce.\n", "")
    assert read_matrices(lost, "n")[0].test == "host_to_device_memcpy_ce", "by the sum below it"
    by_title = lost.replace("SUM host_to_device_memcpy_ce 51.84\n", "")
    assert read_matrices(by_title, "n")[0].test == "host_to_device_memcpy_ce"


@pytest.mark.parametrize("width", [72, 80])
def test_a_matrix_that_a_terminal_wrapped_is_put_together(width):
    wrapped = "\n".join(
        line[at : at + width]
        for line in WIDE.splitlines()
        for at in range(0, max(len(line), 1), width)
    )
    (matrix,) = read_matrices(wrapped, "n")
    assert matrix.values[0] == tuple(pytest.approx(float(rate) * 1e9) for rate in EIGHT)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NVBANDWIDTH.replace("25.84", "52.84"), "add up to 78.84, and a sum of 51.84"),
        (
            NVBANDWIDTH.replace("273.60       N/A", "27.360       N/A"),
            "from 0 to 1, and 27.36 back",
        ),
        (NVBANDWIDTH.replace(" 1    273.60", " 0    273.60"), "'0' before row 1"),
        (NVBANDWIDTH.replace("273.60       N/A", "273.60"), "cut off"),
        (NVBANDWIDTH.replace(" 26.00     25.84", " 26.00"), "1 numbers"),
        (NVBANDWIDTH.replace("26.00", "2600000.0"), "from 1e-06 to 100000"),
        (NVBANDWIDTH.replace("Device 0", "Device 2: x\nDevice 1: y\nDevice 0"), "2 columns in"),
    ],
)
def test_a_damaged_matrix_is_refused_with_the_reason(text, message):
    with pytest.raises(InputError, match=message):
        read_matrices(text, "n.log")


def test_json_names_its_gpus_and_sums(tmp_path):
    case = {"name": "host_to_device_memcpy_ce", "bandwidth_matrix": [["26.0", "25.84"]]}
    document = {
        "nvbandwidth": {
            "GPU Device list": ["0: NVIDIA GeForce RTX 5090 (00000000:0c:00): (node)"],
            "testcases": [case | {"sum": 51.84}],
        }
    }
    path = tmp_path / "n.json"
    path.write_text(json.dumps(document) + json.dumps(document))
    (content,) = read_files([path])
    assert len(content.matrices) == 2
    assert content.matrices[0].devices == ("NVIDIA GeForce RTX 5090",)
    document["nvbandwidth"]["testcases"] = [case | {"sum": 61.84}]
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"a sum of 61\.84"):
        read_files([path])


def test_another_gpu_or_another_link_than_the_topology_has_is_refused():
    dgx = build_topology("dgx-a100")
    other = read_matrices(NVBANDWIDTH.replace("A100-SXM4-80GB", "GH200 480GB"), "n.log")
    with pytest.raises(InputError, match=r"NVIDIA GH200 480GB in .*a100-sxm4-80gb, as dgx-a100"):
        measure_links(other, dgx)
    unnamed = NVBANDWIDTH.replace("Device 0: NVIDIA A100-SXM4-80GB", "")
    fast = unnamed.replace("26.00     25.84", "369.0    369.00").replace("51.84", "738.0")
    with pytest.raises(InputError, match="times as fast as pcie is in dgx-a100"):
        measure_links(read_matrices(fast, "n.log"), dgx)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("=== ROCm System Management Interface ===\nGPU0 0 15\n", "AMD GPUs"),
        ("Measured bandwidth in GB/s of size 512 MiB:\n 0 1\n", "nvloom"),
        ("Device=0 CAN Access Peer Device=1\n", "without a matrix"),
        ("# Avg bus bandwidth : 1.2\n", "nccl-tests without a table"),
        ('Switch 40 "S-01" # "leaf"\n', "ibnetdiscover"),
        ("srun: error: node1\n", "an error message"),
    ],
)
def test_pastes_without_a_number_are_named(tmp_path, text, words):
    path = tmp_path / "paste.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_files([path])


def test_a_matrix_whose_head_is_garbled_is_not_left_out() -> None:
    with pytest.raises(InputError, match="its head is garbled"):
        read_matrices(P2P.replace("GPU     0      1", "GPU     2      1"), "a.txt")

"""Real files of many origins, where a folder of them is at hand: read right, or refused rightly."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from perfmodel.calibrate.readers import read_files
from perfmodel.errors import InputError
from perfmodel.files.pasted_text import read_pasted_text
from perfmodel.topology.importers import import_file

FOLDER = Path(os.environ.get("PERFMODEL_SAMPLES", "no such folder")) / "unseen"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="PERFMODEL_SAMPLES has no unseen files")

WITHOUT_NUMBERS = {
    "gcp-": "is this an example to fill in",
    "ssbandjl-all_reduce": "built without MPI",
    "perlmutter": "built without MPI",
    "nccltests-294": "built without MPI",
    "yccl-test": "a run that did not fail",
    "polaris-nccl_2_18-n128": "an error message",
    "rccl-1352": "tables side by side",
    "gpu-driver-container": "nvloom",
    "aikitoria": "without a matrix",
}
"""Files that lack the facts, by how their names begin, and the reason."""


@pytest.mark.slow
def test_logs_and_matrices_are_read_unless_they_lack_the_facts() -> None:
    refusals = {}
    folders = ("nccltests", "nccltests2", "nccltests_blocks", "nccltests_pastes", "nvbw", "p2p")
    for path in sorted(path for folder in folders for path in (FOLDER / folder).iterdir()):
        if path.stat().st_size > 90_000:
            continue
        try:
            (content,) = read_files([path])
            assert content.sweeps or content.matrices
        except InputError as error:
            refusals[path.name] = str(error)
    for name, message in refusals.items():
        reason = next((r for begin, r in WITHOUT_NUMBERS.items() if name.startswith(begin)), None)
        assert reason is not None, f"{name}: {message}"
        assert reason in message


def _each_line(text: str, before: str, after: str = "") -> str:
    return "\n".join(f"{before}{line}{after}" for line in text.split("\n"))


def _wrapped(text: str, width: int) -> str:
    return "\n".join(
        line[at : at + width]
        for line in text.split("\n")
        for at in range(0, max(1, len(line)), width)
    )


DAMAGES: dict[str, Callable[[str], bytes]] = {
    "name of a pod": lambda text: _each_line(text, "pod/xyz ").encode(),
    "containerd": lambda text: _each_line(text, "2025-11-02T10:11:12.123Z stdout F ").encode(),
    "colours": lambda text: _each_line(text, "\x1b[32m", "\x1b[0m").encode(),
    "Windows": lambda text: text.replace("\n", "\r\n").encode("utf-16"),
    "tabs": lambda text: text.replace(" " * 8, "\t").encode(),
    "pasted twice": lambda text: f"{text}\n{text}".encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "wrapped at 40": lambda text: _wrapped(text, 40).encode(),
    "wrapped at 80": lambda text: _wrapped(text, 80).encode(),
    "half": lambda text: "\n".join(text.split("\n")[: text.count("\n") // 2]).encode(),
}
DAMAGED = [
    "nccltests/yccl-test.log",
    "nccltests_blocks/oke-slurm-1.log",
    "p2p/stelline-asus-p2p.txt",
    "nccltests2/xxrjun-example-cluster00-nccl_N2_G1_cnode2-001_cnode2-002.log",
    "nccltests_blocks/awsome-inference-1.log",
    "nvbw/nvbandwidth-24-h100.txt",
    "nccltests_blocks/cscs-docs-software-communication-nccl-1.log",
]


def _told(path: Path) -> list[object]:
    (content,) = read_files([path])
    return [
        *((s.op, s.ranks, s.nodes, s.in_place, s.rows, s.devices) for s in content.sweeps),
        *((m.test, m.values) for m in content.matrices),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_copies_are_read_right_or_refused(name: str, damage: str, tmp_path: Path) -> None:
    text = read_pasted_text(FOLDER / name)
    copy = tmp_path / "log.txt"
    copy.write_bytes(DAMAGES[damage](text))
    try:
        right = _told(FOLDER / name)
    except InputError:
        with pytest.raises(InputError):
            read_files([copy])
        return
    if damage.startswith("wrapped"):
        with suppress(InputError):
            assert _told(copy) == right
        return
    if damage == "half":  # a part of it at most
        with suppress(InputError):
            told = _told(copy)
            assert len(told) <= len(right)
            for ours, theirs in zip(told, right, strict=False):
                assert ours[:4] == theirs[:4] or ours in right  # type: ignore[index]
        return
    assert _told(copy) == right


@pytest.mark.slow
def test_most_logs_are_read_whatever_the_width_of_the_terminal(tmp_path: Path) -> None:
    """Those that are refused are told why."""
    refusals = []
    for name in DAMAGED:
        copy = tmp_path / "log.txt"
        for width in (40, 60, 80):
            copy.write_text(_wrapped(read_pasted_text(FOLDER / name), width))
            try:
                assert _told(copy)
            except InputError as error:
                refusals.append(str(error))
    assert len(refusals) <= 3 * len(DAMAGED) / 2
    reasons = "wrapped|cut off|cell|built without MPI|did not fail"
    assert all(re.search(reasons, refusal) for refusal in refusals)


WRAPPED_HARDWARE = [
    "nccl_topo/rtx4090-1-cx4.xml",
    "nccl_topo/yccl-topo_h800.xml",
    "matrix/nccl-1264-h100.txt",
    "matrix/stas-a100.txt",
]


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("name", WRAPPED_HARDWARE)
def test_wrapped_hardware_is_the_same_hardware(name: str, width: int, tmp_path: Path) -> None:
    copy = tmp_path / Path(name).name
    copy.write_text(_wrapped(read_pasted_text(FOLDER / name), width))
    try:
        wrapped = import_file(copy)
    except InputError:
        assert width == 40
        return
    assert wrapped.document == import_file(FOLDER / name).document


@pytest.mark.parametrize(
    ("name", "ranks", "nodes", "nbytes", "time_us"),
    [
        ("nccltests_blocks/awsome-inference-1.log", 16, None, 8589934592, 204078),
        ("nccltests_blocks/oke-slurm-1.log", 16, 2, 8589934592, 84948.7),
        ("nccltests_pastes/mooncake-3484-rows-only.txt", 8, None, 33554432, 195.40),
        ("nccltests/awsome-training-topology-aware-nccl-tests.md", 128, None, 17179869184, 92173),
        ("nccltests/deepops-slurm-perf-cluster.md", 32, None, 1048576, 135.3),
    ],
)
def test_numbers_are_those_of_the_page(
    name: str, ranks: int, nodes: int | None, nbytes: int, time_us: float
) -> None:
    (content,) = read_files([FOLDER / name])
    sweep = content.sweeps[0]
    assert (sweep.op, sweep.ranks, sweep.nodes) == ("all_reduce", ranks, nodes)
    assert {row.nbytes: row.time_s for row in sweep.rows}[nbytes] == pytest.approx(time_us * 1e-6)


def test_matrices_of_paths_are_read() -> None:
    pages = sorted((FOLDER / "matrix").iterdir())
    refused = []
    for path in pages:
        try:
            import_file(path, gpu="H100 SXM" if "1453" in path.name else "B200").node()
        except InputError as error:
            if "NVLinks of one" not in str(error) and "another model" not in str(error):
                refused.append(path.name)
    assert refused == ["stas-p2p-ok.txt", "vllm-31594-b200-glued.txt"]

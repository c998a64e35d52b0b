"""Real files of many origins, where a folder of them is at hand: read right, or refused rightly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfmodel.calibrate.readers import read_files
from perfmodel.errors import InputError
from perfmodel.topology.importers import import_file

FOLDER = Path(os.environ.get("PERFMODEL_SAMPLES", "no such folder")) / "unseen"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="PERFMODEL_SAMPLES has no unseen files")

WITHOUT_NUMBERS = {
    "gcp-": "is this an example to fill in", "ssbandjl-all_reduce": "built without MPI",
    "perlmutter": "built without MPI", "nccltests-294": "built without MPI",
    "yccl-test": "a run that did not fail", "polaris-nccl_2_18-n128": "an error message",
    "rccl-1352": "tables side by side", "gpu-driver-container": "nvloom",
    "aikitoria": "without a matrix",
}  # fmt: skip
"""Files that lack the facts, by how their names begin, and the reason."""


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

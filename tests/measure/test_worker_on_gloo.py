"""Schedules executed by real processes on gloo leave the right data behind, bit for bit.

One launch for each number of ranks runs every schedule (``measure_on_gloo.py``).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import perfmodel
from perfmodel.collectives import catalog

NAMES = [
    "all_reduce-ring",
    "all_reduce-tree",
    "all_reduce-recursive_doubling",
    "all_reduce-gloo_ring",
    "reduce_scatter-ring",
    "all_gather-ring",
    "broadcast-chain",
    "broadcast-binomial",
    "reduce-chain",
    "all_to_all-bruck",
]
LARGEST = {"all_reduce": 100_000, "broadcast": 100_000, "reduce": 100_000}


def launch(ranks, folder):
    script = Path(__file__).with_name("measure_on_gloo.py")
    root = str(Path(perfmodel.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script), str(ranks), str(folder)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=90,
        start_new_session=True,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module", params=[3, 4], ids="{} ranks".format)
def group(request, tmp_path_factory):
    """(rank, name -> array) of every rank, and the rows by name."""
    pytest.importorskip("torch", reason="runs real processes on gloo")
    folder = tmp_path_factory.mktemp("gloo")
    launch(request.param, folder)
    data = [dict(np.load(folder / f"rank{rank}.npz")) for rank in range(request.param)]
    return data, json.loads((folder / "rows.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_data_are_right(group, name):
    data, _ = group
    ranks, collective = len(data), name.split("-")[0]
    start = [row[f"{name}-start"] for row in data]
    after = [row[f"{name}-after"] for row in data]
    whole = np.sum(start, axis=0, dtype=start[0].dtype)
    assert all((row[f"{name}-total"] == whole).all() for row in data)  # the library agrees
    parts = np.arange(len(whole)) // -(-len(whole) // ranks)
    for rank in range(ranks):
        if collective == "all_reduce" or (collective == "reduce" and rank == 0):
            assert (after[rank] == whole).all()
        elif collective == "broadcast":
            assert (after[rank] == start[0]).all()
        elif collective == "reduce_scatter":  # our ring leaves part r + 1 on rank r
            mine = parts == (rank + 1) % ranks
            assert (after[rank][mine] == whole[mine]).all()
        elif collective == "all_gather":
            for other in range(ranks):
                part = parts == (other + 1) % ranks
                assert (after[rank][part] == start[other][part]).all()
        elif collective == "all_to_all":
            check_all_to_all(start, after, rank)


def check_all_to_all(start, after, rank):
    """Chunks: one for each receiver, one from each sender, one of scratch for each."""
    ranks = len(start)
    before = [row.reshape(3 * ranks, -1) for row in start]
    here = after[rank].reshape(3 * ranks, -1)
    for sender in set(range(ranks)) - {rank}:
        assert (here[ranks + sender] == before[sender][rank]).all()


@pytest.mark.parametrize("name", NAMES)
def test_every_size_is_timed_beside_the_library(group, name):
    data, rows = group
    collective, _ = name.split("-")
    sizes = [4, 100_000]
    if collective not in LARGEST:
        unit = data[0][f"{name}-start"].itemsize * len(data)
        sizes = [max(1, nbytes // unit) * unit for nbytes in sizes]
    elif data[0][f"{name}-start"].itemsize == 8:
        sizes[0] = 8
    for what in ("schedule", "library"):
        found = [row for row in rows[name] if row["what"] == what]
        assert [row["nbytes"] for row in found] == sizes
        assert all(row["repeats"] == 2 and 0 < row["min_s"] <= row["median_s"] for row in found)


def test_names_are_those_of_the_catalog():
    for name in NAMES:
        collective, algorithm = name.split("-")
        assert algorithm in catalog.ALGORITHMS[collective]

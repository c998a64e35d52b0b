"""Steps of real DistributedDataParallel over Gloo, recorded, beside predicted ones."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from perfmodel.files.csv_rows import read_table
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.training.ddp.buckets import ddp_buckets
from reports.validation.run import records_folder
from reports.validation.trainings import testbed
from reports.validation.trainings.shaped_links import (
    ShapedCluster,
    machine_of,
    measured_links,
    payload_Bps,
    shaped_of,
)
from reports.validation.trainings.testbed import gloo_dataset, models_of, options_of, predicted_s

FOLDER = records_folder() / "testbed"
EVERY = 4
"""So many recorded runs are skipped for one that is predicted: the whole takes ten seconds."""


@cache
def rows() -> list[dict[str, str]]:
    return list(csv.DictReader((FOLDER / "ddp_iters.csv").read_text().splitlines()))


@cache
def errors() -> list[tuple[dict[str, str], float]]:
    """Relative errors of every so many runs."""
    links = measured_links(read_table(FOLDER / "linkcal.csv", []))
    models = models_of(read_table(FOLDER / "models.csv", []))
    known: dict[ShapedCluster, UncontendedTimer] = {}
    return [
        (
            row,
            predicted_s(row, models[row["model"]], links, known) * 1e3 / float(row["iter_ms_med"])
            - 1,
        )
        for row in rows()[::EVERY]
    ]


def p90(found: list[float]) -> float:
    return statistics.quantiles(map(abs, found), n=10)[-1]


def test_buckets_are_those_of_the_real_runs() -> None:
    """Those that DDP said it made, to the byte."""
    models = models_of(read_table(FOLDER / "models.csv", []))
    for row in rows()[::EVERY]:
        if row["bucket_bytes"] and row["mode"] == "ddp":
            found = ddp_buckets(models[row["model"]][0], options_of(row), iteration="steady")
            said = [int(nbytes) for nbytes in row["bucket_bytes"].split("|")]
            assert [bucket.nbytes for bucket in found] == said


@pytest.mark.slow
def test_all_runs_within_one_percent_in_the_median_and_three_at_the_90th_percentile() -> None:
    """Of all 232: 0.19 and 0.75 %, at worst 4.9 %. A broken mechanism is seen here."""
    found = [error for _, error in errors()]
    assert len(found) == 58
    assert statistics.median(map(abs, found)) < 0.004
    assert p90(found) < 0.015
    assert max(map(abs, found)) < 0.03


@pytest.mark.parametrize(
    ("wanted", "median", "worst"),
    [
        ({"n": "2", "delay_us": "0.0"}, 0.003, 0.012),
        ({"n": "4", "delay_us": "0.0", "scenario": "base"}, 0.005, 0.017),
        ({"delay_us": "1000.0"}, 0.008, 0.028),
        ({"scenario": "one_gloo_thread"}, 0.01, 0.025),
        ({"scenario": "straggler"}, 0.006, 0.01),
        ({"scenario": "tree"}, 0.025, 0.025),
        ({"scenario": "no_overlap"}, 0.025, 0.025),
        ({"scenario": "tcp_variants"}, 0.015, 0.02),
        ({"scenario": "accumulation"}, 0.005, 0.006),
        ({"mode": "fp16"}, 0.006, 0.006),
        ({"slow_host": "2:up250"}, 0.01, 0.01),
    ],
)
def test_each_kind_of_run(wanted: Mapping[str, str], median: float, worst: float) -> None:
    found = [abs(e) for row, e in errors() if all(row[k] == v for k, v in wanted.items())]
    assert found
    assert statistics.median(found) < median
    assert max(found) < worst


def test_a_folder_says_what_it_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "models.csv").write_text((FOLDER / "models.csv").read_text())
    header = "model,mode,bucket_cap_mb,n,topo,rate_mbit,payload_mbit,delay_us,mtu,iter_ms_med"
    (tmp_path / "ddp_iters.csv").write_text(
        f"{header}\nmlp8,ddp,inf,2,star,1000,990,0,9000,200\nmlp8,rpc,1,2,star,1000,990,0,9000,9\n"
        "vgg,ddp,1,2,star,1000,990,0,9000,9\nmlp8,ddp,1|0.5,2,star,1000,990,0,9000,150\n"
    )
    found = gloo_dataset(tmp_path, [])
    assert found is not None
    assert len(found.cases) == 2
    assert set(found.left_out) == {"mode rpc", "no model 'vgg' in models.csv"}
    assert gloo_dataset(tmp_path / "nothing", []) is None


def test_caps_of_a_row() -> None:
    assert options_of({"bucket_cap_mb": "def"}).bucket_cap is None
    assert options_of({"bucket_cap_mb": "0.5"}).bucket_cap == 1 << 19
    assert options_of({"bucket_cap_mb": "1|0.5"}).bucket_caps == (1 << 20, 1 << 19)
    assert options_of({"accum": "4", "grad_view": "1"}).accumulate == 4


def test_the_machine_of_a_row() -> None:
    """Rates by hand: an MTU of 9000 leaves 8948 of 9014 bytes, and 66 acknowledge two frames."""
    links = measured_links([])
    rate = 1000e6 / 8 * 8948 / 9014 / (1 + 66 / (2 * 9014))
    assert payload_Bps(1000, "9000", links) == pytest.approx(rate)
    row = {
        "n": "4",
        "rate_mbit": "1000",
        "mtu": "9000",
        "delay_us": "1000",
        "topo": "tree",
        "placement": "0-2-1-3",
        "trunk_mbit": "500",
        "slow_host": "2:up250",
        "gloo_threads": "1",
    }
    shaped = shaped_of(row, links, 2)
    assert shaped.racks == (0, 1, 0, 1)
    assert shaped.slow == ((1, "up", pytest.approx(rate / 4)),)
    assert shaped.burst_bytes == 36556
    assert shaped.one_way_s == pytest.approx(1.0235e-3)
    machine = machine_of(shaped)
    arcs = machine.topology.arcs
    between = [
        (names, rate_Bps)
        for names, rate_Bps, kind in zip(arcs.names, arcs.bandwidth_Bps, arcs.kinds, strict=True)
        if kind == "ethernet"
    ]
    slow = {names: rate_Bps for names, rate_Bps in between if rate_Bps < rate * 0.9}
    assert slow == {
        ("n1/nic0", "fabric/rack1"): pytest.approx(rate / 4),
        ("fabric/rack0", "fabric/rack1"): pytest.approx(rate / 2),
        ("fabric/rack1", "fabric/rack0"): pytest.approx(rate / 2),
    }
    assert machine.library.workers == 1
    assert testbed.CORES == 2

"""Scaling efficiency over TCP, from steps that others published."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import pytest

from perfmodel.files.csv_rows import read_table
from reports.validation.run import records_folder
from reports.validation.trainings.rows.parse import parse_row, samples_per_s
from reports.validation.trainings.step_times import training_step_s

Cells = Mapping[str, str]


def rows(table: str) -> list[Cells]:
    path = records_folder() / "training" / f"{table}.csv"
    return [record.cells for record in read_table(path, [])]


def scaled_error(single: Cells, several: Cells) -> float:
    """How far throughput is off with compute that takes as long as on one GPU."""
    alone, row = parse_row(single), parse_row(several)
    factor = alone.batch / samples_per_s(single, alone) / training_step_s(alone)
    predicted = row.batch * row.gpus / training_step_s(row, factor)
    return predicted / samples_per_s(several, row) - 1


# petuum/adaptdl (OSDI'21): ResNet-50 in fp32 on EC2 g4dn.12xlarge, pods of Kubernetes
@pytest.mark.slow
@pytest.mark.parametrize("batch", ["28", "81", "200"])
def test_resnet_on_ec2_as_pollux_measured(batch: str) -> None:
    table = [cells for cells in rows("pollux_imagenet") if cells["batch_per_gpu"] == batch]
    single = next(cells for cells in table if cells["gpus_total"] == "1")
    several = [cells for cells in table if int(cells["nodes"]) > 1]
    errors = [abs(scaled_error(single, cells)) for cells in several[::6]]
    assert len(errors) > 15
    assert statistics.median(errors) < 0.15
    assert statistics.quantiles(errors, n=10)[-1] < 0.5


# HKBU-HPML/ddl-benchmarks: BERT-Base on 4 x 2080 Ti per node, all gradients after backward
@pytest.mark.parametrize(("interconnect", "most"), [("10GbE", 0.06), ("100GbE", 0.09)])
def test_bert_over_ethernet_without_overlap(interconnect: str, most: float) -> None:
    table = [
        cells
        for cells in rows("ddl_benchmarks_bertbase")
        if f" {interconnect} " in cells["interconnect"]
        and "no overlap" in cells["sync_mode"]
        and "BSP-A2A" in cells["sync_mode"]
    ]
    single = next(cells for cells in table if cells["gpus_total"] == "1")
    errors = [abs(scaled_error(single, cells)) for cells in table if int(cells["nodes"]) > 1]
    assert len(errors) == 3
    assert max(errors) < most

"""Predictions by several processes are those of one, in the order of the sweeps."""

from __future__ import annotations

from pathlib import Path

from perfmodel.validate.forecast import Task
from perfmodel.validate.read import read_sweeps
from perfmodel.validate.run import WORTH_IT, predict_sweeps

HEADER = (
    "sweep_id,collective,gpu,nodes,gpus_per_node,nranks,intra_node,inter_node,"
    "nic_count_per_node,nic_gbps,proc_model,trust"
)


def sweep_folder(root: Path) -> Path:
    """As many sweeps as make processes worth it, of growing length."""
    folder = root / "nccl_sweeps"
    folder.mkdir()
    lines = [HEADER]
    for number in range(WORTH_IT):
        lines.append(f"s{number},all_reduce,A100-SXM4-80GB,1,8,8,NVLink3 NVSwitch,none,,,1 GPU,4")
        times = [f"{2**power},{40 + power}" for power in range(10, 12 + number)]
        (folder / f"s{number}.csv").write_text("\n".join(("size_bytes,time_us", *times)) + "\n")
    (folder / "META.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_processes_change_neither_order_nor_bits(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path)
    tasks = [Task((sweep, folder)) for sweep in read_sweeps(tmp_path)]
    counts: list[tuple[int, int]] = []
    alone = predict_sweeps(tasks, 1, None)
    both = predict_sweeps(tasks, 2, lambda *count: counts.append(count))
    assert both == alone
    assert [len(forecast.times["datasheet"].time_s) for forecast in both] == [
        len(task.sweep[0].rows) for task in tasks
    ]
    assert counts == [(done + 1, len(tasks)) for done in range(len(tasks))]

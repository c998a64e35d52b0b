"""A small folder of recorded sweeps: two that count, two that do not, one of unknown hardware."""

from __future__ import annotations

from pathlib import Path

HEADER = (
    "sweep_id,collective,gpu,nodes,gpus_per_node,nranks,intra_node,inter_node,"
    "nic_count_per_node,nic_gbps,proc_model,trust"
)
ROWS = (
    "one,all_reduce,A100-SXM4-80GB,1,8,8,NVLink3 NVSwitch,none,,,single process 8 GPUs,4",
    "two,all_reduce,H100-SXM5-80GB,2,8,16,NVLink4 NVSwitch,InfiniBand NDR,8,400,1 GPU/process,5",
    "vague,all_reduce,H100-SXM5-80GB,2,8,16,NVLink4 NVSwitch,InfiniBand,,,,4",
    "old,all_reduce,H100-SXM5-80GB,1,8,8,NVLink4 NVSwitch,none,,,,2",
    "odd,all_reduce,Gaudi 3,1,8,8,xGMI,none,,,,4",
)
TIMES = "size_bytes,time_us\n1024,40\n1048576,90\n268435456,2500\n"


def write_records(root: Path) -> Path:
    """Write the sweeps into a folder, and return it."""
    (root / "nccl_sweeps").mkdir()
    (root / "nccl_sweeps" / "META.csv").write_text("\n".join((HEADER, *ROWS)) + "\n")
    for row in ROWS:
        (root / "nccl_sweeps" / f"{row.partition(',')[0]}.csv").write_text(TIMES)
    return root

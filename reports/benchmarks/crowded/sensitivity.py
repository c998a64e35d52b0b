"""How far the time of a collective at fidelity "message" depends on the last digits.

    python reports/benchmarks/crowded/sensitivity.py

Prints a Markdown table: the time with the processor's numbers and with 120 digits, and how far it
changes when the latency of each edge changes by a little. Needs mpmath; takes ten minutes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from perfmodel.collectives.dependencies import messages, unroll
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.message.compile import columns_of
from perfmodel.simulate.message.kernel_state import Kernel
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.templates.build import build_topology

RINGS = ((2, 1 << 20), (2, 16 << 20), (3, 16 << 20), (4, 1 << 20), (4, 16 << 20), (5, 16 << 20))
"""Nodes of DGX A100, and bytes."""
CHANGES = (1e-12, 1e-9, 1e-5)
DIGITS = 120


def main() -> int:
    """Print the table."""
    import mpmath

    mpmath.mp.dps = DIGITS
    changed = " | ".join(f"latencies changed by {change:g}" for change in CHANGES)
    print(f"| ring | {DIGITS} digits | processor's numbers, off by | {changed} |")  # noqa: T201
    print("|---|--:|--:|" + "--:|" * len(CHANGES))  # noqa: T201
    for hosts, nbytes in RINGS:
        machine = Machine(
            build_topology("dgx-a100", hosts=hosts, fabric="rail-optimised"), load_library("nccl")
        )
        timer = UncontendedTimer(machine)
        lowered = timer.best("all_reduce", nbytes, range(8 * hosts), 0, "ring")[0]
        exact_s = time_s(machine, lowered, mpmath.mpf)
        cells = [time_s(machine, lowered, float, change) for change in (0.0, *CHANGES)]
        off = " | ".join(f"{float(abs(cell - exact_s) / exact_s):.1e}" for cell in cells)
        name = f"{8 * hosts} GPUs, {nbytes >> 20} MiB"
        print(f"| {name} | {float(exact_s) * 1e6:.7f} us | {off} |", flush=True)  # noqa: T201
    return 0


def time_s(
    machine: Machine, lowered: LoweredCollective, number: Callable[[Any], Any], change: float = 0.0
) -> Any:
    """When a collective ends, with all quantities of one kind of number."""
    capacity_Bps = machine.topology.arcs.bandwidth_Bps
    kernel = Kernel(capacity_Bps)
    slot = kernel.add(columns_of(lowered, messages(unroll(lowered.schedule)), capacity_Bps))
    state, drawn = kernel._state, random.Random(1)  # noqa: S311
    for records in (state.arcs, state.routes, state.edges, state.sends):
        for field in fields(records[0]):
            for record in records if field.type == "float" else ():
                value = getattr(record, field.name)
                setattr(record, field.name, number(value) if value < float("inf") else value)
    for edge in state.edges:
        edge.latency_s *= 1 + change * drawn.uniform(-1, 1)
    kernel.begin(slot, lowered.launch_s)
    kernel.advance(float("inf"))
    return state.clock[0].now_s


if __name__ == "__main__":
    sys.exit(main())

"""Times of recurrences over a sequence: kernels of mamba_ssm and flash-linear-attention by bytes.

``scan_kernels.yaml`` lists the kernels of a pass. Each takes as long as what it moves, multiplies
or raises to a power, whichever is longest. One that carries the state walks the chunks of a
sequence one after the other: a block of threads for each head and part of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from math import ceil
from pathlib import Path
from typing import Any, Literal

from perfmodel.files import read_yaml
from perfmodel.workload.kernels.device import Device
from perfmodel.workload.kernels.shapes import WIDE_BYTES, Scan

Direction = Literal["forward", "backward"]
VALUES_OF_BLOCK = 64
"""Values of a head whose state a block of threads carries."""


scan_table = cache(partial(read_yaml, Path(__file__).with_name("scan_kernels.yaml")))
"""Returns the kernels of each rule, and their constants."""


def quantities(scan: Scan) -> dict[str, float]:
    """Elements of the tensors that kernels move, and steps of the products that they run.

    The former: a number for each head (decays, step sizes), all values, the keys of all groups,
    keys repeated for each head, states of all chunks, and pairs of a chunk for each group or head.
    A step of a product is a multiplication and an addition.
    """
    tokens, chunk = scan.sequences * scan.tokens, scan.chunk
    state = scan.heads * scan.value_size * scan.key_size
    return {
        "heads": tokens * scan.heads,
        "values": tokens * scan.heads * scan.value_size,
        "keys": tokens * scan.groups * scan.key_size,
        "head_keys": tokens * scan.heads * scan.key_size,
        "states": scan.sequences * ceil(scan.tokens / chunk) * state,
        "scores": tokens * chunk * scan.groups,
        "head_scores": tokens * chunk * scan.heads,
        "state_steps": tokens * state,
        "value_steps": tokens * chunk * scan.heads * scan.value_size,
        "key_steps": tokens * chunk * scan.groups * scan.key_size,
        "head_key_steps": tokens * chunk * scan.heads * scan.key_size,
        "score_steps": tokens * chunk * chunk * scan.heads,
    }


def total(scan: Scan, counts: Mapping[str, float]) -> float:
    """Return the sum of so many of each quantity."""
    each = quantities(scan)
    return float(sum(count * each[name] for name, count in counts.items()))


def scan_operations(scan: Scan) -> float:
    """Operations of the algorithm, forward, masked products counted whole."""
    return 2 * total(scan, scan_table()[scan.rule]["operations"])


def scan_pass(scan: Scan, device: Device, direction: Direction) -> tuple[float, int]:
    """Device time of a pass, in seconds, and how many kernels of layers cost the host as much."""
    rule = scan_table()[scan.rule]
    launches = sum(kernel.get("launches", 1) for kernel in rule[direction].values())
    seconds = sum(kernel_times(scan, device, direction).values())
    return seconds, round(launches * rule.get("host", 1.0))


def kernel_times(scan: Scan, device: Device, direction: Direction) -> dict[str, float]:
    """Device time of each kernel of a pass, by name; seconds."""
    kernels = scan_table()[scan.rule][direction]
    return {name: _kernel_s(scan, kernel, device) for name, kernel in kernels.items()}


def _kernel_s(scan: Scan, kernel: Mapping[str, Any], device: Device) -> float:
    constants = {name: entry["value"] for name, entry in scan_table()["constants"].items()}
    moved = device.item_bytes * total(scan, kernel.get("narrow", {}))
    moved += WIDE_BYTES * total(scan, kernel.get("wide", {}))
    flops = 2 * total(scan, kernel.get("products", {}))
    powers = total(scan, kernel.get("powers", {}))
    blocks = scan.sequences * scan.heads * ceil(scan.value_size / VALUES_OF_BLOCK)
    waves = ceil(blocks / device.multiprocessors) * kernel.get("serial", False)
    busy_s = max(
        moved / (device.memory_Bps * constants["memory_rate"]),
        flops / (device.matrix_flops * constants["product_rate"]),
        waves * ceil(scan.tokens / scan.chunk) * constants["chunk_s"],
        powers / (device.multiprocessors * constants["powers_per_s"]),
    )
    return float(busy_s + device.ramp_s * kernel.get("launches", 1))

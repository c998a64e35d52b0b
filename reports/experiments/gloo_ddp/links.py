"""What plain TCP reaches between two hosts of a lab, and how fast its cores are (`cores.py`).

The only numbers that predictions take. Rows have the columns that ``reports.validation`` reads:
round trips of 64 bytes, how long some sizes take one way, CPU time of a small all-reduce.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

from reports.experiments.gloo_ddp import cores
from reports.experiments.gloo_ddp.lab import Lab, Net, address, enter, urgent

COLUMNS = (
    "rate_mbit",
    "mtu",
    "burst",
    "delay_us",
    "kind",
    "bytes",
    "reps",
    "t_us_min",
    "t_us_med",
    "t_us_max",
    "load1",
)
PORT, ROUND_TRIPS, REPEATS = 9000, 60, 5
SIZES = (1 << 20, 4 << 20, 8 << 20)
Row = dict[str, object]


def calibrated(net: Net) -> list[Row]:
    """Measure the links of a lab of two hosts with these links, and without their delay."""
    rows = []
    for delay_us in sorted({0, net.delay_us}):
        two = replace(net, hosts=2, delay_us=delay_us)
        with Lab(two) as lab:
            timed = _between(lab.names)
            if not delay_us:
                timed.append((cores.KIND, cores.NBYTES, cores.call_us(lab)))
            for kind, nbytes, times_us in timed:
                found: Row = dict(  # noqa: C408  (as columns)
                    rate_mbit=net.rate_mbit,
                    mtu=net.mtu,
                    burst=net.burst_bytes,
                    delay_us=delay_us,
                    kind=kind,
                    bytes=nbytes,
                    reps=len(times_us),
                    t_us_min=round(min(times_us), 1),
                    t_us_med=round(statistics.median(times_us), 1),
                    t_us_max=round(max(times_us), 1),
                    load1=round(os.getloadavg()[0], 2),
                )
                rows.append(found)
    return rows


def _between(names: list[str]) -> list[tuple[str, int, list[float]]]:
    context = mp.get_context("fork")
    answers = context.SimpleQueue()
    far = context.Process(target=_answer, args=(names[1],), daemon=True)
    near = context.Process(target=_ask, args=(names[0], answers), daemon=True)
    far.start()
    time.sleep(0.3)
    near.start()
    found: list[tuple[str, int, list[float]]] = answers.get()
    for process in (near, far):
        process.join(5)
    return found


def _answer(namespace: str) -> None:
    """Echo 64 bytes; swallow larger messages, and say when their last byte was there."""
    enter(namespace)
    urgent()
    with socket.create_server((address(1), PORT)) as server:
        line, _ = server.accept()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with line:
            while head := line.recv(64, socket.MSG_WAITALL):
                left = int(head)
                while left:
                    left -= len(line.recv(min(left, 1 << 20)))
                line.sendall(f"{time.monotonic_ns():<64}".encode())


def _ask(namespace: str, answers: mp.SimpleQueue) -> None:  # type: ignore[type-arg]
    enter(namespace)
    urgent()
    with socket.create_connection((address(1), PORT)) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = [("rtt64", 64, list(_times_us(line, 0, ROUND_TRIPS)))]
        answers.put([*trips, *(("oneway", n, list(_times_us(line, n, REPEATS))) for n in SIZES)])


def _times_us(line: socket.socket, nbytes: int, repeats: int) -> Iterator[float]:
    """Round trips, or how long until the last of some bytes was there; all on one clock."""
    body = bytes(nbytes)
    for number in range(repeats + 2):
        if nbytes:
            time.sleep(0.02)  # so that the shaper's bucket is full again
        begun = time.monotonic_ns()
        line.sendall(f"{nbytes:<64}".encode() + body)
        there = int(line.recv(64, socket.MSG_WAITALL))
        ended = time.monotonic_ns() if nbytes == 0 else there
        if number >= 2:
            yield (ended - begun) / 1e3

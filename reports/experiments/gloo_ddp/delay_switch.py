"""A switch that hands every frame on after a delay; runs in a namespace with the hosts' ports.

usage: delay_switch.py DELAY_US PORT [PORT ...]

Packet sockets with the kernel's virtio header, so that frames whose checksums or segments are left
to the hardware travel as they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import sys
import time
from collections import deque

ALL_PROTOCOLS = 3  # ETH_P_ALL
VNET_HEADER = 15  # PACKET_VNET_HDR, linux/if_packet.h
VNET_BYTES = 10
OUTGOING = 4  # PACKET_OUTGOING
RECEIVE_FORCED = 33  # SO_RCVBUFFORCE
ROOM = 64 << 20
SPIN_S = 60e-6
"""Time before a frame is due from which on the switch stops sleeping."""


def open_port(name: str) -> socket.socket:
    """A socket that sees and sends all frames of a port."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    port.setsockopt(socket.SOL_PACKET if hasattr(socket, "SOL_PACKET") else 263, VNET_HEADER, 1)
    port.setsockopt(socket.SOL_SOCKET, RECEIVE_FORCED, ROOM)
    port.bind((name, 0))
    port.setblocking(False)
    return port


def main(delay_us: int, names: list[str]) -> None:
    """Hand frames on until killed."""
    ports = [open_port(name) for name in names]
    waiting: deque[tuple[float, int, bytes]] = deque()
    delay_s = delay_us * 1e-6
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(3))
    ctypes.CDLL(None).prctl(29, 1, 0, 0, 0)
    print("ready", flush=True)  # noqa: T201  (whoever started it waits for this)
    while True:
        left_s = waiting[0][0] - time.monotonic() if waiting else 1.0
        found, _, _ = select.select(ports, [], [], max(0.0, left_s - SPIN_S))
        now_s = time.monotonic()
        for port in found:
            take(port, ports, now_s + delay_s, waiting)
        while waiting and waiting[0][0] <= time.monotonic():
            _, to, frame = waiting.popleft()
            try:
                ports[to].send(frame)
            except (BlockingIOError, OSError):
                waiting.appendleft((time.monotonic() + SPIN_S, to, frame))
                break


def take(
    port: socket.socket,
    ports: list[socket.socket],
    due_s: float,
    waiting: deque[tuple[float, int, bytes]],
) -> None:
    """Put down all frames that have come from a host, and where they go: by the last byte."""
    while True:
        try:
            frame, origin = port.recvfrom(1 << 17)
        except BlockingIOError:
            return
        if origin[2] == OUTGOING:
            continue
        to = frame[VNET_BYTES + 5] - 1
        if 0 <= to < len(ports):
            waiting.append((due_s, to, frame))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

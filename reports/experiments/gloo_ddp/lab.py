"""Hosts on one machine: network namespaces joined by a switch, their links shaped.

Each host has an interface eth0 with a token bucket filter; its other end lies in a namespace of its
own for the switch. Without a delay the switch is a bridge. With one it is `delay_switch.py`, which
hands every frame on after some time. Needs root, iproute2, and the kernel's veth and tbf.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

NEW_NET = 0x40000000  # CLONE_NEWNET, linux/sched.h
TIMER_SLACK = 29  # PR_SET_TIMERSLACK, linux/prctl.h
HEADER_BYTES = 14
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Net:
    """What links a lab has: rate in Mbit/s, MTU, delay of one way in microseconds."""

    hosts: int
    rate_mbit: int
    mtu: int
    delay_us: int

    @property
    def burst_bytes(self) -> int:
        """Bucket of the shaper: three frames."""
        return 3 * (self.mtu + HEADER_BYTES)


def address(host: int) -> str:
    """IPv4 address of a host."""
    return f"10.66.0.{host + 1}"


def hardware_address(host: int) -> str:
    """MAC address of a host; its last byte says which."""
    return f"02:66:00:00:00:{host + 1:02x}"


def enter(namespace: str) -> None:
    """Move the calling process into a namespace."""
    handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if _libc.setns(handle, NEW_NET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(handle)


def urgent() -> None:
    """Come before everything that runs at usual priority, and wake up on time."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
    except PermissionError:
        os.nice(-10)
    _libc.prctl(TIMER_SLACK, 1, 0, 0, 0)


@dataclass
class Lab:
    """A lab while it stands: ``with Lab(net) as lab``."""

    net: Net
    names: list[str] = field(default_factory=list)
    _delay_switch: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        tag = f"gd{os.getpid()}"
        self.names = [f"{tag}h{host}" for host in range(self.net.hosts)]
        self._switch = f"{tag}s"
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._delay_switch is not None:
            self._delay_switch.terminate()
            self._delay_switch.wait()
        for name in (*self.names, self._switch):
            _run(f"ip netns del {name}", check=False)

    def _build(self) -> None:
        net, switch = self.net, self._switch
        for name in (switch, *self.names):
            _run(f"ip netns add {name}")
            _run(f"ip netns exec {name} sysctl -qw net.ipv6.conf.all.disable_ipv6=1", check=False)
        if not net.delay_us:
            _run(f"ip -n {switch} link add br0 mtu {net.mtu} type bridge")
            _run(f"ip -n {switch} link set br0 up")
        for host, name in enumerate(self.names):
            self._join(host, name)
        if net.delay_us:
            ports = [f"p{host}" for host in range(net.hosts)]
            command = ["ip", "netns", "exec", switch, sys.executable]
            command += [str(Path(__file__).with_name("delay_switch.py")), str(net.delay_us), *ports]
            self._delay_switch = subprocess.Popen(  # noqa: S603  (our own words)
                command, stdout=subprocess.PIPE, text=True
            )
            assert self._delay_switch.stdout is not None
            if self._delay_switch.stdout.readline().strip() != "ready":
                raise RuntimeError("the delaying switch did not start")

    def _join(self, host: int, name: str) -> None:
        net, switch, port = self.net, self._switch, f"p{host}"
        _run(
            f"ip link add eth0 netns {name} mtu {net.mtu} address {hardware_address(host)}"
            f" type veth peer name {port} netns {switch}"
        )
        _run(
            f"ip -n {switch} link set {port} mtu {net.mtu} up"
            + ("" if net.delay_us else " master br0")
        )
        _run(f"ip -n {name} link set lo up")
        _run(f"ip -n {name} link set eth0 up")
        _run(f"ip -n {name} addr add {address(host)}/24 dev eth0")
        for other in range(net.hosts):
            if other != host:
                _run(
                    f"ip -n {name} neigh replace {address(other)} lladdr"
                    f" {hardware_address(other)} dev eth0 nud permanent"
                )
        _run(
            f"tc -n {name} qdisc add dev eth0 root tbf rate {net.rate_mbit}mbit"
            f" burst {net.burst_bytes} limit 64m"
        )


def _run(command: str, *, check: bool = True) -> None:
    done = subprocess.run(  # noqa: S603  (our own words)
        command.split(), capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")

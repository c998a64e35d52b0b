"""What NCCL's connections over TCP carry: flows of a cloud, sockets and threads of a channel.

NCCL opens ``NCCL_SOCKET_NTHREADS`` x ``NCCL_NSOCKS_PERTHREAD`` connections for each channel and
peer, and cuts a message into equal parts for them (NVIDIA/nccl ``src/transport/net_socket.cc``;
parts are of 64 KiB at least, and eight messages are under way, so that all connections are busy).
A channel is as fast as its connections together, each limited by the cloud, and as the threads
that copy for them. Without a device file of a known adapter, as in pods, there is one of each.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.library.model import CommLibrary, Protocol, SocketCosts
from perfmodel.library.settings import LibrarySettings
from perfmodel.topology.model import Sockets, Topology

MOST_CHANNELS = ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS")
LEAST_CHANNELS = ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS")
"""Variables that bound the channels of NCCL, the newest name first."""

CHANNELS_OF_A_RING = 2
"""NCCL runs each ring that it finds on two channels (NVIDIA/nccl ``src/graph/connect.cc``)."""

_SHARED_BY_TWO = {"tree", "nvls_tree"}
"""Algorithms with two trees, each on half of the channels."""


def with_socket_rates(
    library: CommLibrary, topology: Topology, settings: LibrarySettings
) -> CommLibrary:
    """Return the library with what its connections carry where a machine's network is TCP."""
    if library.sockets is None or topology.network != "tcp" or topology.hosts == 1:
        return library
    ring_Bps = ring_rate_Bps(library.sockets, topology, settings)
    return library.model_copy(
        update={
            "protocols": _with_rate(library.protocols, ring_Bps),
            "by_algorithm": {
                name: _with_rate(protocols, ring_Bps / (2 if name in _SHARED_BY_TWO else 1))
                for name, protocols in library.by_algorithm.items()
            },
        }
    )


def _with_rate(protocols: Mapping[str, Protocol], rate_Bps: float) -> dict[str, Protocol]:
    return {
        name: protocol.model_copy(update={"network_rate": rate_Bps})
        for name, protocol in protocols.items()
    }


def ring_rate_Bps(costs: SocketCosts, topology: Topology, settings: LibrarySettings) -> float:
    """Most that all connections of a ring carry from one host to the next; payload per second.

    What a cloud wraps before it counts (an overlay network of pods) is a single flow between two
    hosts, however many connections are in it.
    """
    sockets = topology.sockets
    threads, each = socket_counts(costs, sockets, settings)
    channel_Bps = threads * costs.copies
    if sockets.flow_Bps is not None:
        channel_Bps = min(channel_Bps, threads * each * sockets.flow_Bps)
    rate_Bps = _channels_per_ring(topology, settings) * channel_Bps
    if sockets.pods and sockets.flow_Bps is not None:
        return min(rate_Bps, sockets.flow_Bps)
    return rate_Bps


def socket_counts(
    costs: SocketCosts, sockets: Sockets, settings: LibrarySettings
) -> tuple[int, int]:
    """Threads of a channel and peer, and connections of each."""
    adapter = None if sockets.pods else sockets.adapter
    usual = costs.by_adapter.get(adapter or "other", costs.by_adapter["other"])
    threads = settings.count("NCCL_SOCKET_NTHREADS") or usual.threads
    each = settings.count("NCCL_NSOCKS_PERTHREAD") or usual.each
    threads = min(threads, costs.most_threads)
    return threads, max(min(each, costs.most // threads), 1)


def _channels_per_ring(topology: Topology, settings: LibrarySettings) -> float:
    """Channels on each ring; a ring leaves a host by each of its NICs."""
    first = (device for device in topology.devices.values() if device.host == 0)
    nics = sum(device.kind == "nic" for device in first) or 1
    least = settings.count(*LEAST_CHANNELS) or 0
    most = settings.count(*MOST_CHANNELS)
    channels = max(CHANNELS_OF_A_RING, least / nics)
    return channels if most is None else min(channels, max(most / nics, 1.0))

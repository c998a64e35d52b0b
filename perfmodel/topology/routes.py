"""Routes through a topology: inside a host as NCCL would choose, between hosts by hashed ECMP."""

from __future__ import annotations

from perfmodel.errors import TopologyError, one_of
from perfmodel.topology.ecmp import FabricRoutes
from perfmodel.topology.model import Topology
from perfmodel.topology.paths import PATH_TYPES, HostArc, Path, best_paths

_RANK = {name: rank for rank, name in enumerate(PATH_TYPES)}


class Router:
    """Finds routes and remembers them.

    A route inside one host is the same in all of them, shifted by ``host_arcs``; it is searched
    once. Between hosts, equal-cost ways and parallel cables are chosen by a stable hash of source,
    destination and flow number, so that a flow always takes the same way and flows spread.

    Parameters
    ----------
    topology : Topology
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        nodes = topology.graph.nodes
        self._local_kinds: dict[str, str] = {
            data["local"]: data["kind"] for _, data in nodes(data=True) if data["host"] == 0
        }
        self._local_arcs = self._host_arcs()
        self._local_paths: dict[str, dict[str, Path]] = {}
        self._nics: dict[str, tuple[str, ...]] | None = None
        self._fabric = FabricRoutes(topology)
        self._routes: dict[tuple[str, str, int], tuple[int, ...]] = {}

    # ------------------------------------------------------------ questions

    def route(self, src: str, dst: str, flow: int = 0) -> tuple[int, ...]:
        """Return the indices of the arcs from one device to another, in order.

        Parameters
        ----------
        src, dst : str
            Node names; between hosts, devices other than NICs go by their nearest NICs.
        flow : int
            Number of the flow between the two; different flows may take different ways.

        Raises
        ------
        TopologyError
            Nothing connects them, or no such device.
        """
        key = (src, dst, flow)
        known = self._routes.get(key)
        if known is None:
            known = self._routes[key] = self._find(src, dst, flow)
        return known

    def path_type(self, src: str, dst: str) -> str:
        """Kind of way between two devices: one of `perfmodel.topology.paths.PATH_TYPES`.

        Raises
        ------
        TopologyError
            Both stand in one host and nothing connects them, or no such device.
        """
        host, local = self._place(src)
        other_host, other = self._place(dst)
        if host != other_host or host < 0:
            return "LOC" if src == dst else "NET"
        return self._local(local, other, host).type

    def nearest_nics(self, gpu: str) -> tuple[str, ...]:
        """NICs of the GPU's host, the best path first.

        Among equally good ones the first is chosen so that GPUs that share them use all of them.
        Empty when the host has none that this device reaches.
        """
        host, local = self._place(gpu)
        if self._nics is None:
            self._nics = self._spread_nics()
        ranked = self._nics.get(local)
        if ranked is None:
            ranked = tuple(name for group in self._nic_groups(local) for name in group)
        return tuple(f"n{host}/{name}" for name in ranked)

    def nearest_cpu(self, device: str) -> str:
        """CPU (NUMA domain) of the same host with the best path to a device.

        Raises
        ------
        TopologyError
            No CPU is connected to it.
        """
        host, local = self._place(device)
        reached = self._paths(local)
        cpus = [
            name for name, kind in self._local_kinds.items() if kind == "cpu" and name in reached
        ]
        if not cpus:
            raise TopologyError(f"{device}: no CPU is connected to it")
        return f"n{host}/{min(cpus, key=lambda name: _badness(reached[name]))}"

    # ------------------------------------------------------------ inside a host

    def _host_arcs(self) -> dict[str, list[HostArc]]:
        arcs = self.topology.arcs
        leaving: dict[str, list[HostArc]] = {}
        nodes = self.topology.graph.nodes
        for index in range(self.topology.host_arcs):
            src, dst = (nodes[name]["local"] for name in arcs.names[index])
            arc = HostArc(index, dst, arcs.kinds[index], float(arcs.bandwidth_Bps[index]))
            leaving.setdefault(src, []).append(arc)
        return leaving

    def _paths(self, local: str) -> dict[str, Path]:
        known = self._local_paths.get(local)
        if known is None:
            known = best_paths(local, self._local_kinds, self._local_arcs)
            self._local_paths[local] = known
        return known

    def _local(self, src: str, dst: str, host: int) -> Path:
        path = self._paths(src).get(dst)
        if path is None:
            raise TopologyError(
                f"{self.topology.name}: nothing connects n{host}/{src} to n{host}/{dst}"
            )
        return path

    def _nic_groups(self, local: str) -> list[list[str]]:
        """NICs that a device reaches, best first, equally good ones together."""
        reached = self._paths(local)
        groups: dict[tuple[int, float], list[str]] = {}
        for name, kind in self._local_kinds.items():
            if kind == "nic" and name in reached:
                path = reached[name]
                groups.setdefault((_RANK[path.type], -path.bandwidth_Bps), []).append(name)
        return [groups[key] for key in sorted(groups)]

    def _spread_nics(self) -> dict[str, tuple[str, ...]]:
        gpus = [name for name, kind in self._local_kinds.items() if kind == "gpu"]
        grouped = {gpu: self._nic_groups(gpu) for gpu in gpus}
        sharers: dict[tuple[str, ...], list[str]] = {}
        for gpu, groups in grouped.items():
            if groups:
                sharers.setdefault(tuple(groups[0]), []).append(gpu)
        ranked: dict[str, tuple[str, ...]] = {}
        for nics, users in sharers.items():
            for position, gpu in enumerate(users):
                start = position * max(1, len(nics) // len(users)) % len(nics)
                rest = [name for group in grouped[gpu][1:] for name in group]
                ranked[gpu] = (*nics[start:], *nics[:start], *rest)
        return ranked

    # ------------------------------------------------------------ between hosts

    def _find(self, src: str, dst: str, flow: int) -> tuple[int, ...]:
        host, local = self._place(src)
        other_host, other = self._place(dst)
        if src == dst:
            return ()
        if host == other_host and host >= 0:
            offset = host * self.topology.host_arcs
            return tuple(offset + arc for arc in self._local(local, other, host).arcs)
        out, into = self._gate(src), self._gate(dst)
        head = self.route(src, out) if out != src else ()
        tail = self.route(into, dst) if into != dst else ()
        return head + self._fabric.route(out, into, flow) + tail

    def _gate(self, name: str) -> str:
        """Where a device meets the fabric: itself, or its nearest NIC."""
        if name in self._fabric:
            return name
        nics = self.nearest_nics(name)
        if not nics:
            raise TopologyError(f"{self.topology.name}: {name} reaches no NIC")
        return nics[0]

    # ------------------------------------------------------------ names

    def _place(self, name: str) -> tuple[int, str]:
        try:
            data = self.topology.graph.nodes[name]
        except KeyError:
            known = (node for node in self.topology.graph if node.startswith(("n0/", "fabric/")))
            there_is = one_of(known, name, limit=12)
            raise TopologyError(f"{self.topology.name}: no device {name!r}; {there_is}") from None
        return data["host"], data["local"]


def _badness(path: Path) -> tuple[int, float, int]:
    return _RANK[path.type], -path.bandwidth_Bps, len(path.arcs)

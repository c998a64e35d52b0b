"""GPUs of a composed host: which, how many, and the NVLinks between them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfmodel.errors import Fault, InputError
from perfmodel.topology.composed.host_parts import PartedHost
from perfmodel.topology.from_text.defaults import stated_rate
from perfmodel.topology.from_text.gpu_text import NamedGpu, read_gpu
from perfmodel.topology.from_text.intra_text import IntraText, read_intra
from perfmodel.topology.from_text.layouts import Board, join_gpus
from perfmodel.topology.from_text.parts import GpuConnector, Layout, hardware_parts
from perfmodel.topology.from_text.template_builder import Draft

_COUNTED = re.compile(r"\s*(?P<count>\d{1,4})\s*(?:x\s*|\s)(?P<gpu>\S.*)", re.IGNORECASE)


def read_gpus(
    gpus: int | str | None, gpu: str | None, usual: str | None
) -> tuple[int | None, NamedGpu | None]:
    """Number and model of GPUs; None: not stated.

    `gpus`, `gpu`: the fields. `usual`: name of the GPU where a number alone stands.
    Raises `InputError`: a GPU that is not known, or two of them; every fault.
    """
    faults: list[Fault] = []
    count = gpus if isinstance(gpus, int) else None
    text = None
    if isinstance(gpus, str):
        match = _COUNTED.fullmatch(gpus)
        count = int(match["count"]) if match else 1 if usual is None else None
        text = match["gpu"] if match else gpus
    named = [_read(each, field, faults) for each, field in ((text, "gpus"), (gpu, "gpu")) if each]
    models = {each.name for each in named if each is not None}
    if len(models) > 1:
        faults.append(Fault("gpu", repr(gpu), f"{min(models)!r}, as gpus says, or nothing"))
    if usual is None and not named:
        faults.append(Fault("gpus", repr(gpus), "a number and a GPU, as in '2 x rtx-4090'"))
    if count == 0:
        faults.append(Fault("gpus", repr(gpus), "one or more"))
    if faults:
        raise InputError(faults)
    return count, next(iter(named), None)


def _read(text: str, field: str, faults: list[Fault]) -> NamedGpu | None:
    try:
        return read_gpu(text)
    except InputError as error:
        faults += [
            fault if fault.file else Fault(field, fault.found, fault.allowed)
            for fault in error.faults
        ]
        return None


def change_count(host: PartedHost, count: int) -> PartedHost:
    """Leave a host its first GPUs.

    Raises `InputError`: more than its template has.
    """
    gpus = host.names("gpu")
    if count > len(gpus):
        allowed = f"at most {len(gpus)}, as {host.node.name} has; more: a host without `extends`"
        raise InputError(Fault("gpus", str(count), allowed))
    if count == len(gpus):
        return host
    return host.without(gpus[count:]).with_node(graphs=())


def change_gpu(host: PartedHost, named: NamedGpu, *, relink: bool) -> PartedHost:
    """Put other GPUs into the same host.

    `relink`: whether its NVLinks become those of the new GPU; False where fields state them.
    Raises `InputError`: a GPU that the links of the host cannot join.
    """
    old, part = host.part, named.part
    if named.name == host.node.gpu:
        return host
    if (part.c2c is None) != (old.c2c is None):
        allowed = "a GPU that is plugged in alike: chips with a CPU of their own are no cards"
        raise InputError(Fault("gpu", repr(named.name), allowed))
    changed = PartedHost(host.node, part, host.notes).with_node(gpu=named.name, staging=None)
    changed = changed.noting(*named.assumptions)
    if part.geforce and not old.geforce:
        changed = changed.with_node(gpu_p2p=False, gpudirect_rdma=False).noting(
            "assumption: the driver keeps GeForce GPUs from copying over PCIe"
        )
    layout = layout_of(host)
    if layout == "pcie" or not relink:
        return changed
    if part.nvlink is None:
        allowed = f"a GPU with NVLink, which joins those of {host.node.name}; or nvlink: none"
        raise InputError(Fault("gpu", repr(named.name), allowed))
    if (part.nvlink, part.lanes, part.lane_Bps) == (old.nvlink, old.lanes, old.lane_Bps):
        return changed
    note = f"assumption: {part.lanes} NVLinks for each {named.name}, joined as in the template"
    board = Board(len(host.names("gpu")), layout, part.nvlink, part.lanes, part.lane_Bps)
    return rewire(changed, board).noting(note)


# ---------------------------------------------------------------- NVLink


def layout_of(host: PartedHost) -> Layout:
    """How NVLinks join the GPUs of a host."""
    ends = {
        name
        for a, b, edge in host.edge_pairs()
        if host.node.links[edge.link].kind == "nvlink"
        for name in (a, b)
    }
    if not ends:
        return "pcie"
    if ends & set(host.names("nvswitch")):
        return "nvswitch"
    gpus = len(host.names("gpu"))
    return "cube" if gpus == 8 else "mesh" if gpus > 2 else "bridge"


def change_nvlink(host: PartedHost, text: str | None, *, switch: bool | None) -> PartedHost:
    """Join the GPUs of a host as stated.

    `text`: "none", "bridge", "mesh", "NVLink4", "12 x 25 GB/s". `switch`: the field `nvswitch`.
    Raises `InputError`: text without a meaning, or NVLinks that the GPU does not have.
    """
    intra = None if text is None else _read_nvlink(text)
    if switch is False and layout_of(host) != "nvswitch" and intra is None:
        return host
    layout = _layout(host, intra, switch)
    if layout == "pcie":
        return host.without(host.names("nvswitch")).without_edges(("nvlink",))
    name, lanes, lane_Bps = _links(host.part, intra)
    faults = list(_link_faults(host, layout, name, lanes))
    if faults:
        raise InputError(faults)
    same = layout == layout_of(host) and name == host.part.nvlink and lane_Bps is None
    if same and _lanes_of(host) == lanes and layout != "mesh":
        return host
    return rewire(host, Board(len(host.names("gpu")), layout, name, lanes, lane_Bps))


def rewire(host: PartedHost, board: Board) -> PartedHost:
    """Take the NVLinks of a host out, and put those of a board in."""
    draft = Draft(host.node.gpu, "", "")
    join_gpus(draft, board)
    bare = host.without(host.names("nvswitch")).without_edges(("nvlink",)).pruned()
    return bare.plus(draft).with_node(graphs=())


def _read_nvlink(text: str) -> IntraText | None:
    folded = text.strip().lower()
    if folded in {"on", "yes", "true"}:
        return read_intra("NVLink")
    if folded in {"none", "off", "no", "false"}:
        return read_intra("no NVLink")
    intra = read_intra(text if "nv" in folded else f"NVLink {text}")
    if re.fullmatch(r"[a-z]+", folded) and intra.layout is None and "nv" not in folded:
        allowed = "'none', 'bridge', 'mesh', 'NVLink4' or '12 x 25 GB/s'"
        raise InputError(Fault("nvlink", repr(text), allowed))
    return intra


def _layout(host: PartedHost, intra: IntraText | None, switch: bool | None) -> Layout:
    """How NVLinks join the GPUs: as stated, as in the template, or as is usual."""
    current, stated = layout_of(host), None if intra is None else intra.layout
    if switch:
        return "nvswitch"
    if stated is not None:
        return stated
    few = len(host.names("gpu")) <= 4
    pairwise: Layout = "mesh" if len(host.names("gpu")) > 2 else "bridge"
    if switch is False and current in ("nvswitch", "pcie"):
        return "pcie" if intra is None else pairwise
    if current != "pcie":
        return current
    return "bridge" if not host.part.on_board else "mesh" if few else "nvswitch"


def _links(part: GpuConnector, intra: IntraText | None) -> tuple[str | None, int, float | None]:
    """Name of the NVLink, links of a GPU, and the rate of each where it is another."""
    name = part.nvlink
    links = hardware_parts().links
    if intra is not None and intra.generation is not None:
        stated = f"nvlink{intra.generation}"
        own = name is not None and name.startswith(stated)
        name = name if own else stated if stated in links else None
    lanes = part.lanes if intra is None or intra.lanes is None else intra.lanes
    lane_Bps = part.lane_Bps if intra is None else intra.lane_Bps or part.lane_Bps
    if name is None and lane_Bps is not None:
        name = "nvlink4"  # of a GPU whose data sheet is all that there is
    return name, lanes, stated_rate(name, lane_Bps)


def _lanes_of(host: PartedHost) -> int:
    first = host.names("gpu")[0]
    return sum(
        edge.lanes
        for a, b, edge in host.edge_pairs()
        if first in (a, b) and host.node.links[edge.link].kind == "nvlink"
    )


def _link_faults(host: PartedHost, layout: Layout, name: str | None, lanes: int) -> Iterator[Fault]:
    gpus, gpu = len(host.names("gpu")), host.node.gpu
    if name is None:
        yield Fault("nvlink", f"NVLink between {gpu}", f"'none': {gpu} has no NVLink that is known")
    elif lanes < 1:
        yield Fault("nvlink", f"{lanes} NVLinks", "how many, as in '4 x 25 GB/s'")
    elif lanes > max(1, host.part.lanes):
        yield Fault("nvlink", f"{lanes} NVLinks", f"at most {host.part.lanes}, as {gpu} has")
    elif gpus < 2 and layout != "nvswitch":
        yield Fault("nvlink", f"{layout} with one GPU", "'none', or two GPUs and more")
    elif layout == "mesh" and gpus - 1 > lanes:
        yield Fault("nvlink", f"{gpus} GPUs, all joined to all", f"at most {lanes + 1} of {gpu}")
    elif layout == "cube" and gpus != 8:
        yield Fault("nvlink", f"a hybrid cube mesh of {gpus}", "8 GPUs")

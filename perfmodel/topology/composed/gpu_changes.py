"""GPUs of a composed host: which, how many, and the NVLinks between them."""

from __future__ import annotations

import re
from functools import partial

from perfmodel.errors import Fault, changed_faults, failed, raise_faults, refuse_if
from perfmodel.files import attempt
from perfmodel.memo import first_applying
from perfmodel.topology.composed.tree_changes import PartedHost
from perfmodel.topology.from_text.gpu_text import NamedGpu, read_stated_gpu
from perfmodel.topology.from_text.grammar import unread_words
from perfmodel.topology.from_text.layouts import Board, join_gpus, layout_of, stated_rate
from perfmodel.topology.from_text.network_text import IntraText, read_intra
from perfmodel.topology.from_text.parts import GpuConnector, Layout, hardware_parts, reads_gpus
from perfmodel.topology.from_text.template_builder import Draft
from perfmodel.topology.templates.gpus import limit_power, load_gpu
from perfmodel.topology.templates.spec import nic_ports

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
    stated = ((text, "gpus"), (gpu, "gpu"))
    named = [attempt(faults, partial(_read, each, field)) for each, field in stated if each]
    models = {each.name for each in named if each is not None}
    unnamed, first = usual is None and not named, min(models, default="")
    faults += failed(
        (len(models) > 1, "gpu", repr(gpu), f"{first!r}, as gpus says, or nothing"),
        (unnamed, "gpus", repr(gpus), "a number and a GPU, as in '2 x rtx-4090'"),
        (count == 0, "gpus", repr(gpus), "one or more"),
    )
    raise_faults(faults)
    return count, next(iter(named), None)


def _read(text: str, field: str) -> NamedGpu:
    with changed_faults(lambda f: f if f.file else Fault(field, f.found, f.allowed)):
        return read_stated_gpu(text)


def change_count(host: PartedHost, count: int) -> PartedHost:
    """Leave a host its first GPUs.

    Raises `InputError`: more than its template has.
    """
    gpus = host.names("gpu")
    refuse_if(
        count > len(gpus),
        "gpus",
        str(count),
        f"at most {len(gpus)}, as {host.node.name} has; more: a host without `extends`",
    )
    return host if count == len(gpus) else host.without(gpus[count:]).with_node(graphs=())


def change_gpu(host: PartedHost, named: NamedGpu, *, relink: bool) -> PartedHost:
    """Put other GPUs into the same host.

    `relink`: whether its NVLinks become those of the new GPU; False where fields state them.
    Raises `InputError`: a GPU that the links of the host cannot join.
    """
    old, part = host.part, named.part
    if named.name == host.node.gpu:
        return host
    layout = layout_of(host.node, host.part)
    cases = (
        (
            (part.c2c is None) != (old.c2c is None),
            "a GPU that is plugged in alike: chips with a CPU of their own are no cards",
        ),
        (
            part.amd != old.amd and layout != "pcie",
            "a GPU for the same board: NVLink joins NVIDIA's, xGMI AMD's",
        ),
        (
            relink and layout == "nvswitch" and part.nvlink and not part.on_board,
            "a GPU of a board with NVSwitch, which joins no cards; or nvlink: none",
        ),
        (
            relink and layout != "pcie" and part.nvlink is None,
            f"a GPU with NVLink, which joins those of {host.node.name}; or nvlink: none",
        ),
    )
    rows = ((refused, "gpu", repr(named.name), allowed) for refused, allowed in cases)
    raise_faults(failed(*rows)[:1])
    changed = PartedHost(host.node, part, (*host.notes, *named.assumptions)).with_node(
        gpu=named.name, staging=None, power_limit=None
    )
    if part.geforce and not old.geforce:
        changed = changed.with_node(gpu_p2p=False, gpudirect_rdma=False).noting(
            "assumption: the driver keeps GeForce GPUs from copying over PCIe"
        )
    elif old.geforce and not part.geforce:
        direct = all(reads_gpus(part, port.network_kind) for port in nic_ports(host.node))
        changed = changed.with_node(gpu_p2p=True, gpudirect_rdma=direct).noting(
            f"assumption: the driver lets {named.name} copy over PCIe, as it does no GeForce"
        )
    links = (part.nvlink, part.lanes, part.lane_Bps)
    if layout == "pcie" or not relink or links == (old.nvlink, old.lanes, old.lane_Bps):
        return changed
    note = f"assumption: {part.lanes} NVLinks for each {named.name}, joined as in the template"
    return rewire(changed, layout, links).noting(note)


def change_power(host: PartedHost, limit_W: float) -> PartedHost:
    """Limit what each GPU of a host draws; watts.

    Raises `InputError`: more than its data sheet says, or too little to say how fast it is.
    """
    full = load_gpu(host.node.gpu)
    limit_power(full, limit_W)
    return host.with_node(power_limit=None if limit_W == full.power_W else limit_W)


# ---------------------------------------------------------------- NVLink


def change_nvlink(host: PartedHost, text: str | None, *, switch: bool | None) -> PartedHost:
    """Join the GPUs of a host as stated.

    `text`: "none", "bridge", "mesh", "NVLink4", "12 x 25 GB/s". `switch`: the field `nvswitch`.
    Raises `InputError`: text without a meaning, or NVLinks that the GPU does not have.
    """
    intra = None if text is None else _read_nvlink(text)
    if switch is False and layout_of(host.node, host.part) != "nvswitch" and intra is None:
        return host
    layout = _layout(host, intra, switch, text)
    if layout == "pcie":
        return host.without(host.names("nvswitch")).without_edges(("nvlink",))
    name, lane_Bps = _link(host.part, intra)
    lanes = intra.lanes_of_gpu(layout, len(host.names("gpu"))) if intra is not None else None
    lanes = host.part.lanes if lanes is None else lanes
    _check_links(host, layout, name, lanes)
    same = (
        layout == layout_of(host.node, host.part) and name == host.part.nvlink and lane_Bps is None
    )
    if same and _lanes_of(host) == lanes and layout != "mesh":
        return host
    return rewire(host, layout, (name, lanes, lane_Bps))


def rewire(
    host: PartedHost, layout: Layout, links: tuple[str | None, int, float | None]
) -> PartedHost:
    """Take the NVLinks of a host out, and put others in.

    `links`: name, how many of each GPU, and the rate of each where it is not that of the name.
    """
    (name, lanes, lane_Bps), gpus = links, len(host.names("gpu"))
    if host.part.amd:  # one to each GPU of the board, also to those that are left out
        lanes = min(lanes, gpus - 1)
    draft = Draft(host.node.gpu, "", "")
    join_gpus(draft, Board(gpus, layout, name, lanes, lane_Bps))
    bare = host.without(host.names("nvswitch")).without_edges(("nvlink",)).pruned()
    return bare.plus(draft).with_node(graphs=())


def _read_nvlink(text: str) -> IntraText:
    intra = read_intra(nvlink_words(text))
    stated = (intra.layout, intra.generation, intra.lanes, intra.shared_lanes, intra.lane_Bps)
    plain = text.strip().lower() in {*_ON, "nvlink", "nvswitch"}
    unread = not plain and unread_words(nvlink_words(text).replace(",", " "), "nvlink")
    refuse_if(
        unread or _BITS.search(text) or (not plain and all(each is None for each in stated)),
        "nvlink",
        repr(text),
        "'none', 'bridge', 'mesh', 'NVLink4' or '12 x 25 GB/s'",
    )
    return intra


_ON = ("on", "yes", "true")
_BITS = re.compile(r"\d\s*[MGT](?:bit|bps|b/s)")
"""A rate in bits: NVLinks have bytes."""


def nvlink_words(text: str) -> str:
    """What the field `nvlink` says, in the words of a description.

    Examples
    --------
    >>> [nvlink_words(text) for text in ("off", "mesh", "4 x 25 GB/s", "NVLink3")]
    ['no NVLink', 'NVLink mesh', '4 x 25 GB/s, NVLink', 'NVLink3']
    """
    folded = text.strip().lower()
    return first_applying(
        (folded in {"none", "off", "no", "false"}, "no NVLink"),
        (folded in _ON, "NVLink"),
        ("nv" in folded, text),
        # Behind the word a number of links would be a generation: NVLink 4 x 25 GB/s.
        (re.match(r"\d+\s*[a-z]", folded), f"{text}, NVLink"),
        (True, f"NVLink {text}"),
    )


def _layout(
    host: PartedHost, intra: IntraText | None, switch: bool | None, text: str | None
) -> Layout:
    """How NVLinks join the GPUs: as stated, as in the template, or as is usual."""
    current, stated = layout_of(host.node, host.part), None if intra is None else intra.layout
    refuse_if(
        switch and stated not in {None, "nvswitch"}, "nvswitch", "on", f"off beside nvlink: {text}"
    )
    if switch:
        return "nvswitch"
    if stated is not None:
        return stated
    gpus = len(host.names("gpu"))
    if switch is False and current in ("nvswitch", "pcie"):
        return "pcie" if intra is None else "mesh" if gpus > 2 else "bridge"
    if current != "pcie":
        return current
    return "bridge" if not host.part.on_board else "mesh" if gpus <= 4 else "nvswitch"


def _link(part: GpuConnector, intra: IntraText | None) -> tuple[str | None, float | None]:
    """Name of the NVLink, and the rate of each where it is another."""
    name = part.nvlink
    links = hardware_parts().links
    if intra is not None and intra.generation is not None:
        stated = f"nvlink{intra.generation}"
        own = name is not None and name.startswith(stated)
        name = name if own else stated if stated in links else None
    lane_Bps = part.lane_Bps if intra is None else intra.lane_Bps or part.lane_Bps
    if name is None and lane_Bps is not None:
        name = "nvlink4"  # of a GPU whose data sheet is all that there is
    return name, stated_rate(name, lane_Bps)


def _lanes_of(host: PartedHost) -> int:
    first = host.names("gpu")[0]
    return sum(
        edge.lanes
        for a, b, edge in host.edge_pairs()
        if first in (a, b) and host.node.links[edge.link].kind == "nvlink"
    )


def _check_links(host: PartedHost, layout: Layout, name: str | None, lanes: int) -> None:
    """Refuse NVLinks that the GPUs of a host do not have; the first thing that is wrong."""
    gpus, gpu, part = len(host.names("gpu")), host.node.gpu, host.part
    faults = failed(
        (
            name is None,
            "nvlink",
            f"NVLink between {gpu}",
            f"'none': {gpu} has no NVLink that is known",
        ),
        (
            part.amd and (name != part.nvlink or layout != "mesh"),
            "nvlink",
            f"{name} and {layout}",
            f"'none' or 'mesh': xGMI joins {gpu} all to all",
        ),
        (lanes < 1, "nvlink", f"{lanes} NVLinks", "how many, as in '4 x 25 GB/s'"),
        (
            lanes > max(1, part.lanes),
            "nvlink",
            f"{lanes} NVLinks",
            f"at most {part.lanes}, as {gpu} has",
        ),
        (
            gpus < 2 and layout != "nvswitch",
            "nvlink",
            f"{layout} with one GPU",
            "'none', or two GPUs and more",
        ),
        (
            layout == "mesh" and gpus - 1 > lanes,
            "nvlink",
            f"{gpus} GPUs, all joined to all",
            f"at most {lanes + 1} of {gpu}",
        ),
        (layout == "cube" and gpus != 8, "nvlink", f"a hybrid cube mesh of {gpus}", "8 GPUs"),
    )
    raise_faults(faults[:1])

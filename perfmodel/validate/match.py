"""From the text beside a recorded sweep to the machine, settings and collective to predict.

Library settings from the text beside a log: version, variables, process layout.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from perfmodel.collectives.catalog import ALGORITHMS
from perfmodel.errors import InputError, PerfmodelError
from perfmodel.library.settings import LibrarySettings
from perfmodel.memo import applying, first_applying
from perfmodel.topology.from_text.describe import Described, find_host
from perfmodel.topology.from_text.gpu_text import read_gpu_numbers, says_nothing
from perfmodel.topology.from_text.match_template import HostText, read_host
from perfmodel.topology.from_text.network_text import read_nvlink_domain, read_racks
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology, load_node
from perfmodel.topology.templates.spec import NodeSpec, device_names, nic_ports
from perfmodel.validate.read import Sweep

MOST_RANKS = 2**17
"""Clusters of 100,000 GPUs are what perfmodel is made for; a typing error must not fill memory."""


@dataclass(frozen=True, slots=True)
class Matched:
    """What to predict.

    Parameters
    ----------
    topology : Topology
        Its ranks are those of the run.
    settings : LibrarySettings
    op : str
    assumptions : tuple of str
        What the text leaves open and how it was filled; what is not modelled.
    unstated : tuple of str
        Hardware that the table does not state and that the time depends on.
    hardware : str
        Runs with the same text here are of the same hardware, whatever the number of nodes.
    node : NodeSpec
        Template of a host, with nominal rates.
    """

    topology: Topology
    settings: LibrarySettings
    op: str
    assumptions: tuple[str, ...]
    unstated: tuple[str, ...]
    hardware: str
    node: NodeSpec


@dataclass(frozen=True, slots=True)
class Allocation:
    """Hosts as the network sees them, and the GPUs of each that take part."""

    hosts: int
    gpus: int
    assumptions: tuple[str, ...] = ()


def match(sweep: Sweep, folder: Path | str = ".") -> Matched | str:
    """Find the machine that a sweep was recorded on; a text says why it cannot be predicted.

    Parameters
    ----------
    sweep : Sweep
    folder : path
        Where a YAML file named in the column ``topology`` lies.
    """
    reason = first_applying(
        (
            sweep.collective not in {*ALGORITHMS, "send_recv"},
            f"the collective {sweep.collective!r} is not modelled",
        ),
        (sweep.nranks < 2, "a single rank communicates with nobody"),
        (
            sweep.nranks > MOST_RANKS,
            f"{sweep.nranks:,} ranks; at most {MOST_RANKS:,} are predicted",
        ),
        (not sweep.topology and says_nothing(sweep.gpu), "the GPU is not stated"),
        (True, None),
    )
    try:
        return reason or _match(sweep, Path(folder))
    except PerfmodelError as error:
        return one_line(error)


def one_line(error: Exception, most: int = 220) -> str:
    """Return an error as one line of bearable length."""
    line = str(error).replace("\n", "; ")
    return line if len(line) <= most else line[: most - 4].rsplit(" ", 1)[0] + " ..."


def _match(sweep: Sweep, folder: Path) -> Matched:
    layout, text = _layout(sweep), _text(sweep)
    unstated: tuple[str, ...] = ()
    notes: list[str] = []
    if sweep.topology:
        own = folder / sweep.topology
        host = Described(load_node(str(own) if own.is_file() else sweep.topology), ())
    else:
        stated = _read_host(sweep, layout)
        host = find_host(_complete(stated, sweep, layout))
        unstated = _unstated(stated, sweep, layout)
        notes += [f"not stated: {name}" for name in unstated]
        notes += applying(
            (
                stated.gpu.others,
                f"all GPUs taken as the first that is named, none as {stated.gpu.others}",
            )
        )
    topology = build_cluster(host.node, layout, text)
    settings, remarks = read_settings(
        sweep.nccl_version,
        sweep.proc_model,
        text,
        sweep.gpus_per_node,
        nvlink=any(host.node.links[edge.link].kind == "nvlink" for edge in host.node.edges),
    )
    notes += [*layout.assumptions, *host.assumptions, *remarks]
    return Matched(
        topology,
        settings,
        sweep.collective,
        tuple(notes),
        unstated,
        _hardware(host.node, layout, topology),
        host.node,
    )


def _text(sweep: Sweep) -> str:
    return f"{sweep.intra_node}; {sweep.inter_node}; {sweep.env_and_algo}; {sweep.proc_model}"


# ---------------------------------------------------------------- hosts


def _layout(sweep: Sweep) -> Allocation:
    """Trays of one NVLink domain are one host to NCCL's search, as far as bandwidth goes."""
    domain = read_nvlink_domain(f"{sweep.intra_node}; {sweep.inter_node}; {sweep.gpu}")
    if domain is None or sweep.nodes == 1:
        return Allocation(sweep.nodes, sweep.gpus_per_node)
    racks = read_racks(sweep.inter_node) or -(-sweep.nranks // domain)
    if sweep.nranks % racks or sweep.nranks // racks > domain:
        racks = -(-sweep.nranks // domain)
        while sweep.nranks % racks:
            racks += 1
    per_rack = sweep.nranks // racks
    plural = "domain" if racks == 1 else "domains"
    note = f"{racks} NVLink {plural} of {domain} GPUs, {per_rack} used in each"
    return Allocation(racks, per_rack, (note,))


def _read_host(sweep: Sweep, layout: Allocation) -> HostText:
    """Read everything that the columns state about one host."""
    text = _text(sweep)
    numbers = read_gpu_numbers(text)
    per_node = re.search(r"(\d+)[- ]gpu nodes?", sweep.gpu.lower())
    networked = layout.hosts > 1
    return read_host(
        sweep.gpu,
        gpus=max(layout.gpus, max(numbers, default=0) + 1, int(per_node[1]) if per_node else 0),
        intra=sweep.intra_node,
        network=sweep.inter_node if networked and not says_nothing(sweep.inter_node) else None,
        nics=None if sweep.nic_count is None else round(sweep.nic_count),
        nic_Gbps=sweep.nic_Gbps,
        env=read_assignments(text) if networked else {},
        settings=text,
        remarks=f"{sweep.inter_node}; {sweep.note}",
    )


def _complete(host: HostText, sweep: Sweep, layout: Allocation) -> HostText:
    """Take InfiniBand where no network is stated, and the NICs of a whole NVLink domain."""
    network, is_open = host.network, layout.hosts > 1 and says_nothing(sweep.inter_node)
    kind = network.kind or ("infiniband" if is_open else None)
    # Where trays are joined, the column counts the NICs of one.
    nics = network.nics if layout.hosts == sweep.nodes else None
    return dataclasses.replace(host, network=dataclasses.replace(network, kind=kind, nics=nics))


def build_cluster(node: NodeSpec, layout: Allocation, text: str) -> Topology:
    """Build the cluster; NICs enough for every GPU stand on rails of their own."""
    gpus, nics = (len(device_names(node, kind)) for kind in ("gpu", "nic"))
    fabric = "rail-optimised" if nics >= gpus > 1 else "one-switch"
    numbers = read_gpu_numbers(text)
    listed = len(numbers) == layout.gpus and max(numbers, default=0) < gpus
    topology = build_topology(
        node,
        hosts=layout.hosts,
        fabric=fabric if layout.hosts > 1 else None,
        gpus_per_host=None if listed else layout.gpus,
    )
    if not listed:
        return topology
    return dataclasses.replace(
        topology,
        ranks=tuple(
            topology.ranks[host * gpus + gpu] for host in range(layout.hosts) for gpu in numbers
        ),
    )


# ---------------------------------------------------------------- hardware, and what is open


def _unstated(host: HostText, sweep: Sweep, layout: Allocation) -> tuple[str, ...]:
    """Return what the time depends on and the columns do not state."""
    network, several = host.network, layout.hosts > 1
    missing = (
        ("not stated" in sweep.gpu.lower(), "the GPU"),
        (layout.gpus > 1 and not host.intra.stated, "links between the GPUs of a host"),
        (several and (network.kind is None or network.assumptions), "the kind of network"),
        (several and network.nics is None, "NICs per host"),
        (several and network.nic_Bps is None, "the rate of a NIC"),
    )
    return tuple(applying(*missing))


def _pcie_of(node: NodeSpec) -> str:
    """Name the PCIe links of a host without NVLink, and whether GPUs copy to each other over it."""
    links = sorted({edge.link for edge in node.edges if node.links[edge.link].kind == "pcie"})
    return f"{' and '.join(links)} {'with' if node.gpu_p2p else 'without'} P2P"


def _hardware(node: NodeSpec, layout: Allocation, topology: Topology) -> str:
    """Name what runs of the same hardware share: GPU, links of a host, network; not the scale."""
    model = re.sub(r"(?<=sxm)\d|-\d+gb$", "", node.gpu)
    shape = sorted({(e.link, e.lanes) for e in node.edges if node.links[e.link].kind == "nvlink"})
    kinds = ", ".join(f"{lanes} x {link}" for link, lanes in shape) or (
        _pcie_of(node) if layout.gpus > 1 else "one GPU per host"
    )
    if layout.hosts == 1:
        return f"{model}, {kinds}, one host"
    rate_Gbps = sum(port.bandwidth for port in nic_ports(node)) * 8e-9
    return f"{model}, {kinds}, {topology.network} {rate_Gbps:.0f} Gbit/s per host"


_ASSIGNED = re.compile(r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]+)\s*=\s*([^\s,;]+)")
_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?)")
_ALGORITHMS = r"(ring|tree|nvls_?tree|nvls|collnet_?direct|collnet_?chain|pat)"
_PHRASES: tuple[tuple[str, str, str], ...] = (
    (r"nvls[^,;]{0,10}(?:off\b|disab)|no nvls|without nvls", "NCCL_NVLS_ENABLE", "0"),
    (
        r"(?:sharp|collnet)[^,;]{0,12}(?:off\b|disab)|no sharp|without sharp",
        "NCCL_COLLNET_ENABLE",
        "0",
    ),
    (r"\bsharp\b|\bcollnet\b", "NCCL_COLLNET_ENABLE", "1"),
    (r"pxn[^,;]{0,10}(?:off\b|disab)|no pxn|without pxn", "NCCL_PXN_DISABLE", "1"),
    (r"shm[^,;]{0,10}(?:off\b|disab)|no shm\b|without shm", "NCCL_SHM_DISABLE", "1"),
    (r"no[- ]p2p|p2p[^,;]{0,20}(?:unavail|disab|off\b)|without p2p", "NCCL_P2P_DISABLE", "1"),
)
"""Pattern, and the variable whose value has the same effect; for each the first that fits."""


_CHOICES = (
    (
        rf"(?:algo(?:rithm)?\s*[:=]?\s*{_ALGORITHMS}|{_ALGORITHMS} (?:forced|only))\b",
        "NCCL_ALGO",
    ),
    (
        r"(?:protocol\s*[:=]?\s*(simple|ll128|ll)|(simple|ll128|ll) (?:forced|only))\b",
        "NCCL_PROTO",
    ),
)
"""Pattern whose first or second group is chosen, and the variable that chooses it."""


def read_assignments(text: str) -> dict[str, str]:
    """Return the variables that a text assigns: ``NAME=value``, in their order."""
    return {name: value.strip("'\"") for name, value in _ASSIGNED.findall(text)}


def read_settings(
    version: str, process_model: str, text: str, per_host: int, *, nvlink: bool
) -> tuple[LibrarySettings, tuple[str, ...]]:
    """Read the library's settings from the text beside a log.

    Parameters
    ----------
    version : str
        "2.26.2", "2.4 era" or empty.
    process_model : str
        "single process 8 GPUs", "1 GPU/process MPI" ...
    text : str
        Variables and remarks of all columns.
    per_host : int
        GPUs of a host that take part.
    nvlink : bool
        GPUs of a host are joined by NVLink, so that text about P2P concerns PCIe alone.

    Returns
    -------
    LibrarySettings
    tuple of str
        What is not modelled, and what was concluded from the text.
    """
    variables = read_assignments(text)
    env = {name: value for name, value in variables.items() if name.startswith("NCCL_")}
    notes = [
        f"{name}={value} is not modelled" for name, value in variables.items() if name not in env
    ]
    stated = tuple(_stated_settings(text))
    collnet = "NCCL_COLLNET_ENABLE"  # NCCL has none of its own: a plugin brings it
    if env.get(collnet) == "1" and all(name != collnet for name, *_ in stated):
        del env[collnet]
        notes.append(f"{collnet}=1 without a word of SHARP: taken as without its plugin")
    for name, value, why in stated:
        if name not in env and not (nvlink and name == "NCCL_P2P_DISABLE"):
            env[name] = value
            notes.append(f"{name}={value}: {why}")
    number = _VERSION.search(version)
    taken = number[0] if number else "the newest"
    notes += applying((version and taken != version, f"version taken as {taken}: {version!r}"))
    defaults = LibrarySettings(
        version=None,
        one_process=one_process(process_model, per_host),
        awaited=awaited(process_model, text),
    )
    settings, refused = _validated(number[0] if number else None, env, defaults)
    return settings, (*notes, *refused)


def _stated_settings(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the variables that a text amounts to, their values, and what says so."""
    plain = _ASSIGNED.sub("", text).lower()
    stated: set[str] = set()
    for pattern, name, value in _PHRASES:
        match = re.search(pattern, plain)
        if match and name not in stated:
            stated.add(name)
            yield name, value, repr(match[0])
    for pattern, name in _CHOICES:
        if match := re.search(pattern, plain):
            yield name, match[1] or match[2], repr(match[0])
    if channels := re.search(r"\b(\d+) channels\b", text.lower()):
        for name in ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"):
            yield name, channels[1], "so many channels ran"


def one_process(process_model: str, per_host: int) -> bool:
    """Whether one process drives all GPUs of a host; with one GPU it makes no difference.

    Examples
    --------
    >>> [one_process(t, 8) for t in ("single process 8 GPUs", "1 GPU/process MPI", "")]
    [True, False, False]
    >>> one_process("2 GPUs/process MPI", 2)
    True
    """
    text = process_model.lower()
    is_single = re.search(r"(?:single|one|1)[ -]process\b|\b-g\s*[2-9]", text) is not None
    each = re.search(r"(\d+) gpus?\s*(?:/|per|a|each)\s*process", text)
    return per_host > 1 and (is_single or (each is not None and int(each[1]) > 1))


def awaited(process_model: str, text: str) -> bool:
    """Whether a script of PyTorch timed each collective by itself.

    Examples
    --------
    >>> [awaited(*said) for said in (("1 GPU/process torchrun", ""), ("1 GPU/process MPI", ""))]
    [True, False]
    """
    return bool(re.search(r"torchrun|process torch\b|all_reduce_bench", f"{process_model} {text}"))


def _validated(
    version: str | None, env: dict[str, str], settings: LibrarySettings
) -> tuple[LibrarySettings, tuple[str, ...]]:
    """Drop what the settings refuse, one after another, and say so."""
    refused: list[str] = []
    while True:
        try:
            return LibrarySettings.model_validate(
                settings.model_dump() | {"version": version, "env": env}
            ), tuple(refused)
        except ValueError as error:  # of a model, whose text quotes all that it was given
            text = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            bad = next((name for name in env if name in text), None)
            if bad is not None:
                refused.append(f"{bad}={env[bad]} is not modelled")
                env = {name: value for name, value in env.items() if name != bad}
            elif version is not None:
                refused.append(f"version {version} is not modelled: the newest is taken")
                version = None
            else:
                first = error.faults[0] if isinstance(error, InputError) else text.splitlines()[0]
                refused.append(f"no variable is honoured: {first}")
                env = {}

"""Live discovery: GPUs and NVLinks by NVML, NICs by the kernel's sysfs."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from itertools import permutations
from os.path import commonpath
from pathlib import Path
from typing import Any

from perfmodel.errors import ExecutorUnavailable
from perfmodel.topology.importers.imported import ImportedTopology, natural_key
from perfmodel.topology.importers.path_levels import Matrix, template_from_matrix

_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Path types by nvmlGpuTopologyLevel_t (nvml.h)."""

_REMOTE_GPU, _REMOTE_SWITCH = 0, 2
"""nvmlIntNvLinkDeviceType_t (nvml.h)."""

_MOST_LINKS = 18
_INSTALL = "pip install 'perfmodel[nvml]'"


def discover(
    module: Any = None, sysfs: Path = Path("/sys"), name: str = "this-host"
) -> ImportedTopology:
    """Describe the machine on which this runs.

    Parameters
    ----------
    module : module, optional
        Binding of NVML (default: ``pynvml`` of nvidia-ml-py).
    sysfs : Path
        Where NICs and NUMA domains are looked up.
    name : str
        Name of the template.

    Raises
    ------
    ExecutorUnavailable
        No nvidia-ml-py, no driver, or no GPU.
    """
    try:
        nvml = module if module is not None else importlib.import_module("pynvml")
    except ImportError:
        raise ExecutorUnavailable(f"discovery needs nvidia-ml-py: {_INSTALL}") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise ExecutorUnavailable(
            f"NVML does not start ({error}): no NVIDIA driver on this machine? Import the text of"
            " `nvidia-smi topo -m` of the machine instead"
        ) from None
    try:
        matrix = _matrix(nvml, sysfs)
    except nvml.NVMLError as error:
        raise ExecutorUnavailable(f"NVML does not answer: {error}") from None
    finally:
        nvml.nvmlShutdown()
    return template_from_matrix(
        matrix,
        name,
        kind="nvml",
        title="Discovered on a machine by NVML and sysfs.",
        gpu=None,
        template=None,
    )


# ---------------------------------------------------------------- GPUs


def _matrix(nvml: Any, sysfs: Path) -> Matrix:
    count = int(nvml.nvmlDeviceGetCount())
    if not count:
        raise ExecutorUnavailable("NVML finds no GPU on this machine")
    handles = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(count)]
    buses = [_bus(nvml.nvmlDeviceGetPciInfo(handle).busId) for handle in handles]
    models = [_text(nvml.nvmlDeviceGetName(handle)) for handle in handles]
    several = f"all GPUs are {models[0]}, the first of {', '.join(sorted(set(models)))}"
    cells = {
        (f"GPU{a}", f"GPU{b}"): _LEVELS.get(
            int(nvml.nvmlDeviceGetTopologyCommonAncestor(near, far)), "SYS"
        )
        for (a, near), (b, far) in permutations(enumerate(handles), 2)
    }
    _add_nvlinks(nvml, handles, buses, cells)
    nics, legend, ports = _nics(sysfs)
    devices = sysfs / "bus" / "pci" / "devices"
    places = {f"GPU{at}": str((devices / bus).resolve()) for at, bus in enumerate(buses)} | nics
    for nic, place in nics.items():
        for name in places:
            if name != nic:
                cells[name, nic] = cells[nic, name] = _path_type(places[name], place)
    numa = {f"GPU{at}": _read(devices / bus / "numa_node").strip() for at, bus in enumerate(buses)}
    return Matrix(
        devices=(*(f"GPU{at}" for at in range(count)), *nics),
        cells=cells,
        numa={gpu: domain for gpu, domain in numa.items() if domain.isdigit()},
        legend=legend,
        gpu=models[0],
        notes=(several,) if len(set(models)) > 1 else (),
        pcie=_pcie(nvml, handles),
        ports=ports,
    )


def _pcie(nvml: Any, handles: list[Any]) -> dict[str, tuple[int, int]]:
    links = {}
    for at, handle in enumerate(handles):
        generation = _answer(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle)
        width = _answer(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle)
        if generation and width:
            links[f"GPU{at}"] = (int(generation), int(width))
    return links


def _add_nvlinks(
    nvml: Any, handles: list[Any], buses: list[str], cells: dict[tuple[str, str], str]
) -> None:
    """Put ``NV#`` where NVLinks lead: to a peer, or by a switch to all that reach it."""
    direct: Counter[tuple[int, int]] = Counter()
    switched: Counter[int] = Counter()
    for at, handle in enumerate(handles):
        for link in range(_MOST_LINKS):
            if not _answer(nvml, "nvmlDeviceGetNvLinkState", handle, link):
                continue
            kind = _answer(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            far = _answer(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            bus = _bus(far.busId) if far is not None else ""
            if bus in buses and kind in {None, _REMOTE_GPU}:
                direct[at, buses.index(bus)] += 1
            elif kind == _REMOTE_SWITCH:
                switched[at] += 1
    lanes_of = {**{(src, dst): switched[src] for src, dst in permutations(switched, 2)}, **direct}
    cells |= {(f"GPU{src}", f"GPU{dst}"): f"NV{lanes}" for (src, dst), lanes in lanes_of.items()}


def _answer(nvml: Any, question: str, *about: Any) -> Any:
    """Answer of NVML; None where it does not know, as for links that a GPU has not."""
    try:
        return getattr(nvml, question)(*about)
    except (nvml.NVMLError, AttributeError):
        return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bus(value: Any) -> str:
    """Return a PCI bus id as sysfs writes it: four digits of the domain, of NVML's eight."""
    return _text(value).strip("\0").lower()[-12:]


# ---------------------------------------------------------------- NICs


def _nics(
    sysfs: Path,
) -> tuple[dict[str, str], dict[str, str], dict[str, tuple[str, float, str]]]:
    """Places, names and ports of RDMA NICs whose link is up."""
    places: dict[str, str] = {}
    legend: dict[str, str] = {}
    ports: dict[str, tuple[str, float, str]] = {}
    for port in sorted((sysfs / "class" / "infiniband").glob("*/ports/*"), key=_in_order):
        device, speed = port.parents[1], re.match(r"\s*([\d.]+)\s*Gb/sec", _read(port / "rate"))
        if speed is None or "ACTIVE" not in _read(port / "state"):
            continue
        name = f"NIC{len(places)}"
        places[name] = str((device / "device").resolve())
        legend[name] = device.name
        infiniband = _read(port / "link_layer").strip() == "InfiniBand"
        efa = device.name.startswith(("efa", "rdmap"))
        kind = "efa" if efa else "infiniband" if infiniband else "roce"
        source = f"/sys/class/infiniband/{device.name}/ports/{port.name}/rate"
        ports[name] = (kind, float(speed[1]) * 1e9 / 8, f"{source} of the machine")
    return places, legend, ports


def _in_order(port: Path) -> tuple[Any, Any]:
    return natural_key(port.parents[1].name), natural_key(port.name)


def _path_type(a: str, b: str) -> str:
    """Path type of two PCI functions, by the bridges above both."""
    parts, other_parts = (Path(place).parts for place in (a, b))
    common = len(Path(commonpath([a, b])).parts)
    shared = [part for part in parts[:common] if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:.*", part)]
    if shared:
        return "PIX" if (max(len(parts), len(other_parts)) - common) <= 2 else "PXB"
    if any(re.fullmatch(r"pci[0-9a-f]{4}:[0-9a-f]{2}", part) for part in parts[:common]):
        return "PHB"
    domains = [_read(Path(place) / "numa_node").strip() for place in (a, b)]
    return "NODE" if domains[0] == domains[1] and domains[0].isdigit() else "SYS"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""

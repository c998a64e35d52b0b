"""What is installed, what each extra adds, which devices are seen, and what can be measured here.

Nothing here raises: a tool that is broken is what people ask a doctor about.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.memo import T
from perfmodel.version import __version__

EXTRAS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "torch": (("torch",), "measure, and checks against the PyTorch that is installed"),
    "img": (("kaleido",), "figures as PNG and SVG (run --images), with a Chromium"),
    "parquet": (("pyarrow",), "sweep --parquet"),
    "dask": (("dask", "distributed"), "sweep --backend dask"),
    "ray": (("ray",), "sweep --backend ray"),
    "mcp": (("mcp",), "perfmodel mcp: tools for agents"),
    "xlsx": (("XlsxWriter",), "result.xlsx beside a report (-o)"),
}
"""Packages of each extra of ``pip install 'perfmodel[...]'``, and what it adds."""

PACKAGES = (
    "numpy",
    "scipy",
    "pandas",
    "numba",
    "networkx",
    "simpy",
    "pydantic",
    "PyYAML",
    "plotly",
    "joblib",
    "typer",
    "rich",
)

TOOL_LIMIT_S = 10.0
"""Longest that a driver's tool may take to list its GPUs."""


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of the installation; `missing`: packages that are not there."""

    name: str
    adds: str
    installed: Mapping[str, str]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Devices:
    """What this machine has.

    `cpu`, `cores`, `memory_bytes`: None where the system does not say.
    `gpus`: names, as the driver says. `gpu_source`: what said so, or why nothing did.
    `cuda`: what PyTorch says of its CUDA devices. `sees_gpus`: whether it has any; None where it
        was not asked.
    `nics`: name and state or speed of each network interface and RDMA port.
    """

    cpu: str
    cores: int | None
    memory_bytes: float | None
    gpus: tuple[str, ...]
    gpu_source: str
    cuda: str
    sees_gpus: bool | None
    nics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Installation:
    """What `inspect_installation` saw.

    `packages`: version of each package that perfmodel needs; None where it is missing.
    `measurable`: what could be measured here, and the command.
    `problems`: what does not work, each with what to do.
    """

    perfmodel: str
    python: str
    platform: str
    packages: Mapping[str, str | None]
    extras: tuple[Extra, ...]
    devices: Devices
    measurable: Mapping[str, str]
    problems: tuple[str, ...]

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        from html import escape

        return f"<pre>{escape(chr(10).join(describe_installation(self)))}</pre>"


def inspect_installation(sysfs: Path = Path("/sys")) -> Installation:
    """Look at packages, devices and what they allow; never raises.

    `sysfs`: where the kernel lists network devices.
    """
    packages = {name: _version(name) for name in PACKAGES}
    extras = tuple(_extra(name, *row) for name, row in EXTRAS.items())
    devices = _devices(sysfs)
    return Installation(
        perfmodel=__version__,
        python=platform.python_version(),
        platform=_quietly(platform.platform, "unknown"),
        packages=packages,
        extras=extras,
        devices=devices,
        measurable=_measurable(extras, devices),
        problems=tuple(_problems(packages, devices)),
    )


def _quietly(function: Callable[[], T], otherwise: T) -> T:
    """Return what a function returns, or something else if it raises anything."""
    try:
        return function()
    except Exception:  # noqa: BLE001  (foreign code and drivers; a doctor does not fall ill)
        return otherwise


def _version(name: str) -> str | None:
    return _quietly(lambda: importlib.metadata.version(name), None)


def _extra(name: str, packages: tuple[str, ...], adds: str) -> Extra:
    versions = [(package, _version(package)) for package in packages]
    installed = {package: version for package, version in versions if version is not None}
    return Extra(name, adds, installed, tuple(p for p in packages if p not in installed))


# ---------------------------------------------------------------- devices


def _devices(sysfs: Path) -> Devices:
    from perfmodel.measure.run import describe_machine

    gpus, source = _gpus()
    unknown: tuple[str, bool | None] = ("PyTorch fails when it is imported", None)
    cuda, sees_gpus = _quietly(_read_cuda, unknown)
    return Devices(
        cpu=_quietly(lambda: describe_machine()["cpu"], "unknown"),
        cores=_quietly(lambda: len(os.sched_getaffinity(0)), os.cpu_count()),
        memory_bytes=_quietly(
            lambda: float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")), None
        ),
        gpus=gpus,
        gpu_source=source,
        cuda=cuda,
        sees_gpus=sees_gpus,
        nics=_quietly(lambda: tuple(_read_nics(sysfs)), ()),
    )


def _gpus() -> tuple[tuple[str, ...], str]:
    """Names of GPUs by nvidia-smi; and what said so, or why nothing did."""
    tool, no_lines = shutil.which("nvidia-smi"), tuple[str, ...]()
    if tool is None:
        return (), "no nvidia-smi"
    lines = _quietly(lambda: _ask_tool(tool), no_lines)
    return lines, "nvidia-smi" if lines else "nvidia-smi lists no GPU"


def _ask_tool(tool: str) -> tuple[str, ...]:
    done = subprocess.run(  # noqa: S603  (the driver's own tool, without input)
        [tool, "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=TOOL_LIMIT_S,
        check=True,
    )
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())


def _read_cuda() -> tuple[str, bool | None]:
    """Say what PyTorch sees, and whether that is a GPU.

    It is not imported where there is no GPU driver at all.
    """
    version = _version("torch")
    if version is None:
        return "PyTorch is not installed (extra torch)", None
    if not Path("/proc/driver/nvidia").exists() and "torch" not in sys.modules:
        return f"torch {version}, no NVIDIA driver", None
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return f"torch {version}, no CUDA device", False
    count = torch.cuda.device_count()
    return f"torch {version} with CUDA {torch.version.cuda}: {count} devices", True


def _read_nics(sysfs: Path) -> Iterator[str]:
    """Yield interfaces with a device behind them, and RDMA ports."""
    yield from (
        f"{port.name}: {_speed(port)}"
        for port in sorted((sysfs / "class/net").glob("*"))
        if (port / "device").exists()
    )
    for port in sorted((sysfs / "class/infiniband").glob("*/ports/*")):
        rate = _quietly((port / "rate").read_text, "unknown rate").strip()
        yield f"{port.parent.parent.name} port {port.name}: {rate}"


def _speed(port: Path) -> str:
    """Speed that the kernel states in Mbit/s, which is -1 where there is none."""
    mbit = _quietly(lambda: int((port / "speed").read_text()), -1)
    return (
        f"{mbit / 1000:g} Gbit/s"
        if mbit > 0
        else _quietly(lambda: (port / "operstate").read_text().strip(), "unknown")
    )


# ---------------------------------------------------------------- what can be done


def _measurable(extras: tuple[Extra, ...], devices: Devices) -> dict[str, str]:
    """What could be measured here, and the command; of what cannot, what it needs."""
    with_torch = not next(extra for extra in extras if extra.name == "torch").missing
    ranks, count = max(2, min(4, devices.cores or 2)), len(devices.gpus)
    return {
        what: command
        for is_able, what, command in (
            (
                with_torch,
                "collectives between processes (gloo)",
                f"perfmodel measure ring --backend gloo --ranks {ranks} -o gloo.json",
            ),
            (
                with_torch and count,
                "one GPU: streams, copies, kernels",
                "perfmodel measure ring --backend device --ranks 4 -o gpu.json",
            ),
            (
                with_torch and count > 1,
                "collectives between GPUs (NCCL)",
                (
                    f"torchrun --nproc-per-node {count} --no-python perfmodel measure ring "
                    f"--backend nccl --ranks {count} -o nccl.json"
                ),
            ),
            (
                count,
                "this machine as a topology",
                (
                    "nvidia-smi topo -m > topo.txt; perfmodel topology import topo.txt "
                    f"--gpu '{''.join(devices.gpus[:1])}' -o my-node.yaml"
                ),
            ),
        )
        if is_able
    }


def _problems(packages: Mapping[str, str | None], devices: Devices) -> list[str]:
    return [
        text
        for is_so, text in (
            *(
                (v is None, f"{name} is missing: pip install {name}")
                for name, v in packages.items()
            ),
            (
                devices.gpus and devices.sees_gpus is False,
                "there are GPUs, but this PyTorch sees none: install a build with CUDA",
            ),
        )
        if is_so
    ]


# ---------------------------------------------------------------- in words


def describe_installation(installation: Installation) -> list[str]:
    """Write it down in lines for a terminal."""
    from perfmodel.units import format_bytes

    devices = installation.devices
    needs = [f"{name} {text or 'MISSING'}" for name, text in installation.packages.items()]
    memory = "unknown" if devices.memory_bytes is None else format_bytes(devices.memory_bytes)
    problems = [f"  {line}" for line in installation.problems]
    return [
        f"perfmodel {installation.perfmodel}, Python {installation.python}",
        f"on {installation.platform}",
        f"needs: {', '.join(needs)}",
        "",
        "extras (pip install 'perfmodel[NAME]')",
        *(f"  {each.name:<8} {_state(each):<22} {each.adds}" for each in installation.extras),
        "",
        "this machine",
        f"  CPU      {devices.cpu}, {devices.cores or 'unknown'} cores for this process",
        f"  memory   {memory}",
        f"  GPUs     {', '.join(devices.gpus) or 'none seen'} ({devices.gpu_source})",
        f"  PyTorch  {devices.cuda}",
        f"  network  {'; '.join(devices.nics) or 'no adapter seen'}",
        "",
        "can be measured here"
        if installation.measurable
        else "nothing can be measured here: extra torch",
        *(
            line
            for name, command in installation.measurable.items()
            for line in (f"  {name}", f"    {command}")
        ),
        *(["", "problems", *problems] if problems else []),
    ]


def _state(extra: Extra) -> str:
    there = ", ".join(f"{name} {version}" for name, version in extra.installed.items())
    return f"not there: {', '.join(extra.missing)}" if extra.missing else there

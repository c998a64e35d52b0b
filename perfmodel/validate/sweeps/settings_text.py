"""Library settings from the text beside a log: version, variables, process layout."""

from __future__ import annotations

import re
from collections.abc import Iterator

from perfmodel.errors import InputError
from perfmodel.library.settings import LibrarySettings

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
    for name, value, why in _stated_settings(text):
        if name not in env and not (nvlink and name == "NCCL_P2P_DISABLE"):
            env[name] = value
            notes.append(f"{name}={value}: {why!r}")
    for name, value in _counted_channels(text):
        if name not in env:
            env[name] = value
            notes.append(f"{name}={value}: so many channels ran")
    number = _VERSION.search(version)
    if version and (number is None or number[0] != version):
        notes.append(f"version taken as {number[0] if number else 'the newest'}: {version!r}")
    defaults = LibrarySettings(
        version=None,
        one_process=one_process(process_model, per_host),
        awaited=awaited(process_model, text),
    )
    settings, refused = _validated(number[0] if number else None, env, defaults)
    return settings, (*notes, *refused)


def _stated_settings(text: str) -> Iterator[tuple[str, str, str]]:
    plain = _ASSIGNED.sub("", text).lower()
    stated: set[str] = set()
    for pattern, name, value in _PHRASES:
        match = re.search(pattern, plain)
        if match and name not in stated:
            stated.add(name)
            yield name, value, match[0]
    forced = re.search(
        rf"(?:algo(?:rithm)?\s*[:=]?\s*{_ALGORITHMS}|{_ALGORITHMS} (?:forced|only))\b", plain
    )
    if forced:
        yield "NCCL_ALGO", (forced[1] or forced[2]), forced[0]
    protocol = re.search(
        r"(?:protocol\s*[:=]?\s*(simple|ll128|ll)|(simple|ll128|ll) (?:forced|only))\b", plain
    )
    if protocol:
        yield "NCCL_PROTO", (protocol[1] or protocol[2]), protocol[0]


def _counted_channels(text: str) -> Iterator[tuple[str, str]]:
    match = re.search(r"\b(\d+) channels\b", text.lower())
    if match:
        yield "NCCL_MIN_NCHANNELS", match[1]
        yield "NCCL_MAX_NCHANNELS", match[1]


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
    if per_host < 2:
        return False
    if re.search(r"(?:single|one|1)[ -]process\b|\b-g\s*[2-9]", text):
        return True
    each = re.search(r"(\d+) gpus?\s*(?:/|per|a|each)\s*process", text)
    return bool(each) and int(each[1]) > 1 if each else False


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
        except ValueError as error:
            text = str(error)
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

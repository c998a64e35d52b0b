"""What free text about hardware says: GPU, links inside a host, network, process layout.

The words are those that people write beside nccl-tests logs. Nothing here knows a machine by heart
beyond its names; what the words leave open stays open (None or empty).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from perfmodel.topology.model import NetworkKind

Intra = Literal["nvswitch", "mesh", "bridge", "nvlink", "pcie", "none", ""]
"""Links between GPUs of a host: through NVSwitch, a hybrid cube mesh, a bridge between pairs,
NVLink of another or unknown shape, PCIe, nothing (one GPU); empty: not stated."""

_FAMILY = re.compile(
    r"gb[23]00|b[23]00|gh200|h[12]00|h[28]00|h20|a[18]00|a[34]0|a10g?|v100|p100|l40s|l40|l20|l4|t4|k80"
    r"|mi\d{2,3}[ax]?|rtx\d{4}(?:ti|super|ada)?|rtxa\d{4}|quadrortx\d{4}|titan[a-z]+|gtx\d{4}(?:ti)?"
)
_FAMILY_SPACES = re.compile(r"(?<=rtx)[ _-]+|(?<=gtx)[ _-]+|(?<=titan)[ _-]+|(?<=quadro)[ _-]+"
                            r"|(?<=\d{4})[ _-]+(?=ti\b|super\b|ada\b)")  # fmt: skip
_MEMORY = re.compile(r"(\d{2,3})\s*gi?b\b")


@dataclass(frozen=True, slots=True)
class GpuWords:
    """A GPU in words: family ("a100"), form ("sxm", "pcie" or ""), memory in GB or None."""

    family: str
    form: str
    memory_GB: int | None


UNKNOWN_GPU = GpuWords("", "", None)


def says_nothing(text: str) -> bool:
    """Whether a cell says that nothing is known: empty, "not stated", "unknown hardware"."""
    return not text.strip() or bool(
        re.search(r"not (?:stated|named|known)|unknown|^none$", text.lower())
    )


def gpu_words(text: str) -> GpuWords | None:
    """Read the first GPU that a text names; None if it names none.

    Examples
    --------
    >>> gpu_words("Tesla V100-SXM2-16GB")
    GpuWords(family='v100', form='sxm', memory_GB=16)
    >>> gpu_words("RTX 2080 Ti").family
    'rtx2080ti'
    """
    folded = _FAMILY_SPACES.sub("", text.lower())
    for match in _FAMILY.finditer(folded):
        before = folded[match.start() - 1] if match.start() else " "
        after = folded[match.end() : match.end() + 1]
        if before.isalnum() or after.isalnum():
            continue
        rest = folded[match.end() :].partition("+")[0]
        form = "sxm" if "sxm" in rest else "pcie" if "pcie" in rest or "nvl" in rest else ""
        memory = _MEMORY.search(rest)
        return GpuWords(match[0], form, int(memory[1]) if memory else None)
    return None


def other_gpus(text: str) -> str:
    """Return what stands beside the first GPU in a text that names two; empty if it names one."""
    first = gpu_words(text)
    for separator in ("+", "/", " and ", " or "):
        rest = text.partition(separator)[2].strip()
        other = gpu_words(rest) if rest else None
        if first and other and other.family != first.family:
            return rest
    return ""


_INTRA: tuple[tuple[str, Intra], ...] = (
    (r"nvswitch|nvl\d\d", "nvswitch"),
    (r"cube.?mesh|\bhcm\b|dgx.?1\b", "mesh"),
    (r"bridge", "bridge"),
    (r"nvlink|\bnv\d+\b", "nvlink"),
    (r"pcie|\b(?:pix|pxb|phb|sys|node)\b", "pcie"),
)


def intra_kind(text: str, gpu: GpuWords, gpus: int) -> Intra:
    """Kind of links between the GPUs of a host.

    "NVLink" alone means what such a host of eight GPUs has: a cube mesh of V100 (or P100),
    NVSwitch from A100 on; with fewer GPUs it stays open.
    """
    words = text.lower()
    nothing: Intra = "none" if gpus == 1 else ""
    found = next((kind for pattern, kind in _INTRA if re.search(pattern, words)), nothing)
    if found == "nvlink" and gpu.family.startswith("gb"):
        return "nvswitch"
    if found == "nvlink" and gpus == 8:
        return "mesh" if gpu.family in {"v100", "p100"} else "nvswitch"
    return found


# ---------------------------------------------------------------- the network

_NETWORKS: tuple[tuple[str, NetworkKind, str], ...] = (
    (r"tcpxo|fastrak", "tcpxo", ""),
    (r"tcpx|gpudirect.?tcp", "tcpx", ""),
    (r"\befa", "efa", ""),
    (r"omni.?path|\bopa\b|\bhfi\b", "omni-path", ""),
    (r"\broce", "roce", ""),
    (r"\bsockets?\b|\btcp\b|tcp/ip|\bena\b|ipoib|ec2 network", "tcp", ""),
    (r"infini.?band|\bib\b|\b[efhnx]dr\d*\b|quantum", "infiniband", ""),
    (r"a3.?mega", "tcpxo", "GPUDirect-TCPXO: taken from the name of the machine"),
    (r"a3.?high", "tcpx", "GPUDirect-TCPX: taken from the name of the machine"),
    (r"ethernet|gbe\b|gigabit", "tcp", "sockets: plain Ethernet is stated, and no RDMA"),
    (r"rdma|connect.?x|\bcx-?\d", "infiniband", "InfiniBand: only RDMA is stated"),
)
_CPU_SOCKETS = re.compile(r"(?:across|cross|same|other|two|dual|2|in)[- ](?:cpu )?sockets?")
_NO_NETWORK = {"", "none", "no", "single node", "not stated", "unknown"}


def network_kind(text: str, env: dict[str, str]) -> tuple[NetworkKind | None, str]:
    """Kind of network between hosts, and what was assumed; None if the words name none.

    Examples
    --------
    >>> network_kind("RoCE v2 25 GbE", {})
    ('roce', '')
    >>> network_kind("InfiniBand HDR", {"NCCL_IB_DISABLE": "1"})[0]
    'tcp'
    """
    words = _CPU_SOCKETS.sub("", text.lower())
    found: tuple[NetworkKind | None, str] = (None, "")
    for pattern, kind, assumed in _NETWORKS:
        if re.search(pattern, words):
            found = (kind, assumed)
            break
    verbs = found[0] in {"infiniband", "roce", None}
    no_verbs = env.get("NCCL_IB_DISABLE") == "1" and verbs
    if no_verbs or env.get("NCCL_NET", "").lower() == "socket":
        return "tcp", ""
    if found[0] is None and words.strip() not in _NO_NETWORK and env.get("NCCL_NET") == "IB":
        return "infiniband", "InfiniBand: NCCL_NET=IB"
    return found


_RATES = (
    (r"\bxdr\b", 800.0), (r"\bndr200\b", 200.0), (r"\bndr\d*\b", 400.0), (r"\bhdr100\b", 100.0),
    (r"\bhdr\b", 200.0), (r"\bedr\b", 100.0), (r"\bfdr\b", 56.0),
)  # fmt: skip
"""Gbit/s of four lanes, by the InfiniBand Trade Association's names."""
_COUNTED = re.compile(r"(\d+)\s*x\s*(?:nics?\s*)?(?:hdr|ndr|edr|xdr)?\s*(\d+)\s*g", re.IGNORECASE)
_GBIT = re.compile(r"(\d+(?:\.\d+)?)\s*-?(?:gbe|gbit/?s?|gbps|gb/s|g)\b", re.IGNORECASE)


def nic_words(text: str) -> tuple[float | None, float | None]:
    """NICs per host and Gbit/s of one, as far as words about a network tell them.

    Examples
    --------
    >>> nic_words("Omni-Path 4x100G"), nic_words("InfiniBand HDR"), nic_words("TCP 10GbE")
    ((4.0, 100.0), (None, 200.0), (None, 10.0))
    """
    counted = _COUNTED.search(text)
    if counted:
        return float(counted[1]), float(counted[2])
    for pattern, rate in _RATES:
        if re.search(pattern, text.lower()):
            return None, rate
    rate_words = _GBIT.search(text)
    return None, float(rate_words[1]) if rate_words else None


def mtu_words(text: str) -> int | None:
    """MTU of the network in bytes, if stated: ``"RDMA MTU 256"``."""
    match = re.search(r"\bmtu\s*(?:of|=|:)?\s*(\d{3,5})\b", text.lower())
    return int(match[1]) if match else None


def domain_words(text: str) -> int | None:
    """GPUs of one NVLink domain that spans hosts (MNNVL); None if none is named."""
    words = text.lower()
    if match := re.search(r"nvl(36|72|144|576)\b", words):
        return int(match[1])
    return 72 if "mnnvl" in words or "multi-node nvlink" in words else None


_SMALL = {"one": 1, "two": 2, "three": 3, "four": 4, "six": 6, "eight": 8}


def racks_words(text: str) -> int | None:
    """Racks that are named: ``"MNNVL two racks + RoCE"``."""
    match = re.search(r"\b(\d+|" + "|".join(_SMALL) + r")[ -]*racks?\b", text.lower())
    return None if match is None else _SMALL.get(match[1]) or int(match[1])


# ---------------------------------------------------------------- devices that were used


def used_gpus(text: str) -> tuple[int, ...]:
    """GPUs of each host that ranks ran on, where a text lists them: ``"GPUs 0,2,4,6"``."""
    match = re.search(
        r"(?:gpus?|cuda_visible_devices)\s*[ =:]\s*(\d+(?:\s*,\s*\d+)+)", text.lower()
    )
    return tuple(int(number) for number in match[1].split(",")) if match else ()


def peer_access(text: str) -> bool | None:
    """Whether GPUs copy to each other over PCIe; None if nothing is said."""
    words = text.lower()
    denied = r"no[- ]?p2p|without p2p|p2p_disable\s*=\s*1|p2p[^,;]{0,20}(?:unavail|disab|off|not)"
    if re.search(denied, words):
        return False
    return (
        True
        if re.search(r"p2p[^,;]{0,20}(?:enab|patch|unlock|on\b)|patched driver", words)
        else None
    )


def gpudirect(text: str) -> bool | None:
    """Whether NICs reach GPU memory; None if nothing is said."""
    words = text.lower()
    name = r"(?:gpu ?direct(?: rdma)?|gdr(?:dma)?)"
    if re.search(
        rf"(?:no|without) {name}\b|{name}[^,;]{{0,12}}(?:disab|off\b|unavail|not )", words
    ):
        return False
    return True if re.search(rf"{name}[^,;]{{0,12}}(?:enab|on\b|forced)", words) else None

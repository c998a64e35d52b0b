"""Links inside a host and networks between hosts as people write them: "NVLink3", "RoCE 25 GbE"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.memo import first_applying
from perfmodel.topology.from_text.grammar import GPUDIRECT, nic_rate, read_phrases, unread_words
from perfmodel.topology.from_text.parts import Layout, hardware_parts
from perfmodel.topology.model import NetworkKind
from perfmodel.units import parse_bandwidth

_KINDS: tuple[tuple[str, NetworkKind], ...] = (
    (r"tcpxo|fastrak", "tcpxo"),
    (r"tcpx|gpudirect.?tcp", "tcpx"),
    (r"\befa|\bsrd\b", "efa"),
    (r"omni.?path|\bopa\b|\bhfi\b", "omni-path"),
    (r"\broce|rdma over (?:converged )?ethernet", "roce"),
    (r"\bsockets?\b|\btcp\b|\bena\b|ipoib|ec2 network", "tcp"),
    (r"infini.?band|\bib\b|\b[efhnqx]dr\d*\b|quantum", "infiniband"),
    (r"a3.?mega", "tcpxo"),
    (r"a3.?high", "tcpx"),
    (r"slingshot", "roce"),
    (r"ethernet|gbe\b|gigabit|sr-iov|gvnic|virtio|\beth\d", "tcp"),
    (r"rdma|connect.?x|\bcx-?\d", "infiniband"),
)
"""The first pattern that fits decides. RDMA alone: InfiniBand; Ethernet alone: sockets."""
_OTHER_CPU = r"separate|different|distinct|opposite|other|remote|another"
_CPU_SOCKETS = re.compile(
    rf"\b(?:across|between|cross|same|both|{_OTHER_CPU}|own|each|per|cpu|one|single|two|dual|four"
    r"|[124]|in|the)[- ](?:the )?(?:cpu )?sockets?\b|\bsockets? (?:each|per)\b"
)
"""Sockets that hold CPUs; what is left are those of TCP."""
_ACROSS = re.compile(
    r"across(?! (?:the )?(?:all )?(?:nodes|hosts|servers|machines|racks|switches))|\bsys\b"
    rf"|\b(?:{_OTHER_CPU}) (?:cpu |numa )?(?:socket|cpu|package|node|domain)s?\b"
)
"""Words that put the NIC under another CPU than the GPUs."""
_NUMERALS = {"one": 1, "two": 2, "three": 3, "four": 4, "six": 6, "eight": 8}


@dataclass(frozen=True, slots=True)
class NetworkText:
    """What a text states about the network; None: not stated."""

    kind: NetworkKind | None
    """None: no network."""
    nic_Bps: float | None = None
    nics: int | None = None
    rate_source: str = ""
    across: bool = False
    """Whether the NIC is under another CPU than the GPUs."""
    assumptions: tuple[str, ...] = ()


def read_network(
    text: str | None,
    env: Mapping[str, str] | None = None,
    *,
    usual: NetworkKind | None = None,
) -> NetworkText:
    """Read what joins hosts: "InfiniBand HDR", "AWS EFA (p4d.24xlarge)", "RoCE v2 25 GbE".

    No `text`: no network. `env`: NCCL's variables, of which some choose the kind. `usual`: kind
    where the text names none.

    Raises `InputError`: a text that names no network that is known, and no `usual` one.

    Examples
    --------
    >>> read_network("RoCE v2 25 GbE").kind
    'roce'
    >>> read_network("InfiniBand HDR", {"NCCL_IB_DISABLE": "1"}).kind
    'tcp'
    """
    folded = (text or "none").lower()
    stated = next(
        (kind for pattern, kind in _KINDS if re.search(pattern, _CPU_SOCKETS.sub("", folded))), None
    )
    kind = _kind_in_use(stated, env or {}) or (None if text is None else usual)
    silent = re.fullmatch(r"\W*(none|no network|nan)?\W*", folded)
    refuse_if(
        kind is None and read_nvlink_domain(folded) is None and not silent,
        "network",
        repr(text),
        "none, infiniband, roce, efa, tcp, tcpx, tcpxo or omni-path, in any usual spelling",
    )
    nics, nic_Bps, source = _rate(text or "")
    slingshot = kind == "roce" and "roce" not in folded and "slingshot" in folded
    return NetworkText(
        kind=kind,
        nic_Bps=nic_Bps,
        nics=nics,
        rate_source=source,
        across=bool(_ACROSS.search(folded)),
        assumptions=("assumption: slingshot taken as RoCE v2",) if slingshot else (),
    )


def links_inside(text: str) -> str:
    """Return a text without its phrases on NICs, on who reads whose memory, and on NCCL.

    Examples
    --------
    >>> links_inside("NVLink2 hybrid cube mesh, 4x 100 Gb InfiniBand per node")
    'NVLink2 hybrid cube mesh,  '
    """
    for phrase in read_phrases(text, prose=True):
        if phrase.subject in {"nic", "gpudirect", "p2p", "setting"}:
            text = text.replace(phrase.text, " ", 1)
    return text


def _kind_in_use(stated: NetworkKind | None, env: Mapping[str, str]) -> NetworkKind | None:
    """Kind of network that NCCL's variables leave in use."""
    no_verbs = env.get("NCCL_IB_DISABLE") == "1" and stated in {"infiniband", "roce", None}
    if no_verbs or env.get("NCCL_NET", "").lower() == "socket":
        return "tcp"
    return "infiniband" if stated is None and env.get("NCCL_NET") == "IB" else stated


def _rate(text: str) -> tuple[int | None, float | None, str]:
    """NICs of a host, bytes per second of each, and where that rate is from."""
    nics = [
        {"rate": p.text} if p.subject == "lanes" else p.words
        for p in read_phrases(text, prose=True)
        if p.subject in {"nic", "lanes"}
    ]
    rated = [words for words in nics if nic_rate(words) is not None]
    if not rated:
        return None, None, ""
    words = min(rated, key=lambda words: ("rate" not in words, "count" not in words))
    count = re.match(r"\d+", words.get("count", ""))
    source = (
        "as described" if "rate" in words else f"InfiniBand {words['generation'].upper()}, 4 lanes"
    )
    return int(count[0]) if count else None, nic_rate(words), source


def read_mtu(text: str) -> int | None:
    """MTU of the network in bytes, if stated: ``"RDMA MTU 256"``."""
    match = re.search(r"\bmtu\s*(?:of|=|:)?\s*(\d{3,5})\b", text.lower())
    return int(match[1]) if match else None


def read_gpudirect(text: str) -> bool | None:
    """Whether NICs read and write GPU memory; None: not stated."""
    off = rf"(?:no|without) {GPUDIRECT}\b|{GPUDIRECT}[^,;]{{0,12}}(?:disab|off\b|unavail|not )"
    return on_or_off(text.lower(), off, rf"{GPUDIRECT}[^,;]{{0,12}}(?:enab|on\b|forced)")


def on_or_off(text: str, off: str, on: str) -> bool | None:
    """Return whether a text says that something is on, by patterns; None: it says neither."""
    return first_applying((re.search(off, text), False), (re.search(on, text), True), (True, None))


def read_nvlink_domain(text: str) -> int | None:
    """GPUs of one NVLink domain that spans hosts (MNNVL); None if none is named."""
    text = text.lower()
    if match := re.search(r"nvl(36|72|144|576)\b", text):
        return int(match[1])
    return 72 if re.search(r"mnnvl|multi-?node nvlink", text) else None


def read_racks(text: str) -> int | None:
    """Racks that are named: ``"MNNVL two racks + RoCE"``."""
    match = re.search(r"\b(\d+|" + "|".join(_NUMERALS) + r")[ -]*racks?\b", text.lower())
    return None if match is None else _NUMERALS.get(match[1]) or int(match[1])


@dataclass(frozen=True, slots=True)
class IntraText:
    """What a text states about the links inside a host; None: not stated."""

    layout: Layout | None
    nvlink: bool
    """Whether NVLink is named at all."""
    lanes: int | None
    lane_Bps: float | None
    """`lanes` and `lane_Bps`: NVLinks of one GPU, and the raw rate of each, one direction."""
    shared_lanes: int | None
    """NVLinks that two GPUs share ("NV2"), or a GPU and its switches."""
    generation: int | None
    """Of NVLink."""
    pcie: str | None
    """Generation of PCIe: "pcie4"."""
    switches: bool | None
    """PCIe switches (True), or straight under the CPUs (False)."""
    domains: int | None
    """CPUs (NUMA domains)."""
    own_domains: bool
    """Whether each GPU has a NUMA domain of its own."""
    cpu: str | None

    @property
    def stated(self) -> bool:
        """Whether the kind of link between GPUs is stated."""
        return self.layout is not None or self.nvlink

    def lanes_of_gpu(self, layout: Layout, gpus: int) -> int | None:
        """NVLinks of one of some GPUs in a layout, as far as they are stated."""
        if self.lanes is not None or self.shared_lanes is None or layout == "cube":
            return self.lanes
        return self.shared_lanes * (gpus - 1) if layout == "mesh" else self.shared_lanes


_LAYOUTS: tuple[tuple[str, Layout], ...] = (
    (r"nv\s?switch|nvl72|dgx[\s-]?(2|[abh])|hgx", "nvswitch"),
    (r"cube|hcm\b|dgx[\s-]?1", "cube"),
    (r"bridge", "bridge"),
    (r"mesh|all[\s-]to[\s-]all|fully connected", "mesh"),
)


_NVLINK = r"nv[\s-]?(?:link|switch)[a-z0-9]*(?:[\s-]bridges?)?(?![\s-]*sharp)"
_VERSION = r"(?:v|gen(?:eration)?[\s-]?)?"
_UNUSED_NVLINK = re.compile(
    rf"\b(?:no|without|w/o|lacks?|missing|unused|disabled)\s+(?:any\s+|an?\s+)?{_NVLINK}"
    rf"|{_NVLINK}[^;()]{{0,40}}?\b(?:unused|not (?:in )?use[d]?|unconnected)\b"
    rf"|{_NVLINK}[^;(),]{{0,24}}?\b(?:not \w+|disabled|off|absent|inactive|missing|down)\b"
)
"""Words that deny NVLink: there are no such links, or the GPUs do not use them. Switching NVLink
SHARP off denies none."""


def read_intra(text: str) -> IntraText:
    """Read what joins the GPUs of a host: "NVLink3 NVSwitch", "PCIe4 x16, two sockets".

    What the text says of the network between hosts does not count. GPUs whose NVLinks are not used
    are joined by PCIe.
    """
    text, denied = _UNUSED_NVLINK.subn(" ", links_inside(text).lower())
    nvlink = bool(re.search(r"nv\s?link|nvswitch|\bnv\d+\b", text))
    named = next((name for pattern, name in _LAYOUTS if re.search(pattern, text)), None)
    layout = "pcie" if denied and not nvlink else named
    if layout is None and not nvlink and re.search(r"pci|pix|pxb|phb|\bsys\b|numa|root", text):
        layout = "pcie"
    each = re.search(r"(\d+)\s*(?:x|links? of|links? at)\s*(\d+(?:\.\d+)?)\s*gb", text)
    links = re.search(r"(\d+)\s*(?:nv)?links?\b|\bnv(\d+)\b", text)
    generation = re.search(
        r"nv\s?link[\s-]?(?:v|gen(?:eration)?[\s-]?)?(\d)(?![\d.]|\s*(?:x|links?)\b)", text
    )
    lanes = int(each[1]) if each else None
    shared_lanes = int(links[2]) if links and links[2] else None
    if links and links[1] and not each:  # of a GPU, unless the text says that each joins a pair
        lanes, shared_lanes = int(links[1]), None
        if layout in {"cube", "mesh"}:
            lanes, shared_lanes = None, lanes
    return IntraText(
        layout=layout,
        nvlink=nvlink,
        lanes=lanes,
        shared_lanes=shared_lanes,
        lane_Bps=float(each[2]) * 1e9 if each else None,
        generation=int(generation[1]) if generation else None,
        pcie=read_pcie(text),
        switches=_switches(text),
        domains=_domains(text),
        own_domains=bool(_OWN_DOMAIN.search(text)),
        cpu=_cpu(text),
    )


_OWN_DOMAIN = re.compile(
    r"\bsys\b|(?:gpu|one|each) (?:per|in its|on its|under its)(?: own)? (?:numa|socket|cpu)"
    r"|(?:numa (?:node|domain)|socket|cpu) each|(?:numa (?:node|domain)|socket|cpu) per gpu"
)
_APART = re.compile(
    r"(?:separate|different|distinct|both|opposite|across|cross)[\s-]*(?:the )?(?:two )?(?:cpu )?"
    r"(?:socket|cpu|numa|package)"
)
_RATES_GTps = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
"""Transfer rate of a lane and generation of PCIe (PCI Express base specification)."""


def read_pcie(text: str) -> str | None:
    """Generation of PCIe: "PCIe4", "PCI Express 4.0 x16", "PCIe x16 Gen5", "Gen3 PCIe", "16 GT/s".

    Examples
    --------
    >>> [read_pcie(text) for text in ("PCIe 3.0 x16", "Gen4 PCIe", "PCIe x16 at 32 GT/s", "PCIe")]
    ['pcie3', 'pcie4', 'pcie5', None]
    """
    text = text.lower()
    name = r"\bpci(?:[\s-]?e(?:xpress)?)?"
    lanes = r"(?:[\s,-]*x\s?\d+(?!\d))?[\s,-]*"
    patterns = (
        rf"{name}{lanes}(?:gen(?:eration)?|g|v|version)?[\s.-]?([1-6])(?:\.0)?(?![\d.])(?!\s*x\b)",
        rf"\bgen(?:eration)?[\s-]?([1-6])(?:\.0)?\s*(?:x\d+\s*)?{name}",
        rf"\b([1-6])(?:st|nd|rd|th)[\s-]gen(?:eration)?\s*{name}",
    )
    stated = next((match for each in patterns if (match := re.search(each, text))), None)
    if stated:
        return f"pcie{stated[1]}"
    rate = re.search(r"(?<![\d.])(2\.5|5|8|16|32|64)(?:\.0)?\s*gt/s", text)
    return f"pcie{_RATES_GTps[rate[1]]}" if rate and re.search(name, text) else None


_IN_A_NODE = re.compile(
    r"\b(?:inside|within|in|per|each|every|the|a|one|single|of)\s+(?:a |the |one )?node\b"
)
"""Words on a host, where NODE alone is a path between GPUs as ``nvidia-smi topo -m`` has it."""


def _switches(text: str) -> bool | None:
    straight = r"root (complex|port)|phb|\bnode\b|straight|direct"
    return on_or_off(_IN_A_NODE.sub(" ", text), straight, r"pix|pxb|plx|(?<!nv)(?<!nv )switch")


def _domains(text: str) -> int | None:
    """CPUs (NUMA domains) that are counted, or two where parts are under different ones."""
    cpus = "socket|numa|cpu|xeon|epyc"
    number = r"(one|two|single|dual|four|[1248])"
    match = re.search(rf"\b{number}[\s-]*(?:x\s*)?(?:amd |intel )?(?:{cpus})", text)
    numerals = {"one": 1, "single": 1, "two": 2, "dual": 2, "four": 4}
    if match is not None and not re.match(r"\s*per\b", text[match.end() :]):
        return numerals.get(match[1]) or int(match[1])
    return 2 if _APART.search(text) else None


def _cpu(text: str) -> str | None:
    """Kind of CPU that is named; "AMD EPYC Genoa" is of the kind Genoa."""
    named = [name for name in hardware_parts().cpus if name in text]
    return named[-1] if named else "epyc" if re.search(r"amd|rome|milan", text) else None


def read_peer_access(text: str) -> bool | None:
    """Whether GPUs copy to each other over PCIe; None: not stated."""
    off = r"no[- ]?p2p|without p2p|p2p_disable\s*=\s*1|p2p[^,;]{0,20}(?:unavail|disab|off|not)"
    return on_or_off(text.lower(), off, r"p2p[^,;]{0,20}(?:enab|patch|unlock|on\b)|patched driver")


def read_slot(text: str, field: str) -> tuple[int, int]:
    """Generation and lanes of a slot; 16 lanes where none are stated.

    Raises `InputError`: no generation, or lanes that no slot has.

    Examples
    --------
    >>> read_slot("gen4 x8", "pcie"), read_slot("PCIe 5.0", "pcie")
    ((4, 8), (5, 16))
    """
    stated = text if re.search(r"pci", text, re.IGNORECASE) else f"PCIe {text}"
    generation, lanes = read_pcie(stated), re.search(r"x\s?(\d+)(?!\d)", text)
    count = int(lanes[1]) if lanes else 16
    if generation is None or unread_words(stated, "pcie") or count not in (1, 2, 4, 8, 16):
        raise InputError(Fault(field, repr(text), "a slot such as 'gen4 x16', of 1 to 16 lanes"))
    return int(generation.removeprefix("pcie")), count


def adapter_rate(text: str) -> float | None:
    """Return the rate of the adapter that a text names, ConnectX-7; bytes per second."""
    adapter = re.search(r"\b(?:connect[\s-]?x|cx)[\s-]?(\d)", text, re.IGNORECASE)
    rates = hardware_parts().adapters
    return parse_bandwidth(rates[adapter[1]]) if adapter and adapter[1] in rates else None

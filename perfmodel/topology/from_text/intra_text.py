"""What joins the GPUs of a host, as people write it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfmodel.topology.from_text.network_text import links_inside, on_or_off
from perfmodel.topology.from_text.parts import Layout, hardware_parts


@dataclass(frozen=True, slots=True)
class IntraText:
    """What a text states about the links inside a host; None: not stated."""

    layout: Layout | None
    nvlink: bool
    """Whether NVLink is named at all."""
    lanes: int | None
    lane_Bps: float | None
    """`lanes` and `lane_Bps`: NVLinks of one GPU, and the raw rate of each, one direction."""
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
    layout = next((name for pattern, name in _LAYOUTS if re.search(pattern, text)), None)
    if denied and not nvlink:
        layout = "pcie"
    if layout is None and not nvlink and re.search(r"pci|pix|pxb|phb|\bsys\b|numa|root", text):
        layout = "pcie"
    each = re.search(r"(\d+)\s*(?:x|links? of|links? at)\s*(\d+(?:\.\d+)?)\s*gb", text)
    links = re.search(r"(\d+)\s*(?:nv)?links?\b|\bnv(\d+)\b", text)
    generation = re.search(
        r"nv\s?link[\s-]?(?:v|gen(?:eration)?[\s-]?)?(\d)(?![\d.]|\s*(?:x|links?)\b)", text
    )
    lanes = int(each[1]) if each else None
    if links and lanes is None and layout not in {"cube", "mesh"}:  # there: what one pair has
        lanes = int(links[1] or links[2])
    return IntraText(
        layout=layout,
        nvlink=nvlink,
        lanes=lanes,
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
    if re.search(r"amd|epyc|rome|milan", text):
        return "epyc"
    return next((name for name in hardware_parts().cpus if name in text), None)


def read_peer_access(text: str) -> bool | None:
    """Whether GPUs copy to each other over PCIe; None: not stated."""
    off = r"no[- ]?p2p|without p2p|p2p_disable\s*=\s*1|p2p[^,;]{0,20}(?:unavail|disab|off|not)"
    return on_or_off(text.lower(), off, r"p2p[^,;]{0,20}(?:enab|patch|unlock|on\b)|patched driver")

"""GPUs, and what joins them, as people write them. Words in, parts out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError, allowed_names, nearest
from perfmodel.topology.from_text.parts import GpuConnector, Layout, hardware_parts
from perfmodel.topology.templates.gpus import gpu_names

_BEFORE = r"(?:(?<![a-z0-9])|(?<=rtx)|(?<=gtx)|(?<=geforce)|(?<=tesla)|(?<=nvidia)|(?<=quadro))"

# ---------------------------------------------------------------- GPUs


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """A GPU that was found in words.

    Parameters
    ----------
    name : str
        In the table of GPUs.
    part : GpuConnector
    assumptions : tuple of str
        What the words left open.
    """

    name: str
    part: GpuConnector
    assumptions: tuple[str, ...] = ()


def gpu_in(words: str, beside: str = "") -> NamedGpu:
    """Find the GPU that words name, in any usual spelling.

    Parameters
    ----------
    words : str
        "Tesla V100-SXM2-16GB", "H100 PCIe", "RTX 4090", or a name of the table.
    beside : str
        What joins the GPUs, which tells a board from a card where `words` do not.

    Raises
    ------
    InputError
        No GPU that is known; the message lists those that are.

    Examples
    --------
    >>> gpu_in("NVIDIA A100-SXM4-80GB").name, gpu_in("H100 PCIe").name
    ('a100-sxm4-80gb', 'h100-pcie-80gb')
    """
    known = hardware_parts().gpus
    if words in known:
        return NamedGpu(words, known[words])
    text = words.lower()
    found = sorted(_mentions(text))
    if not found:
        raise InputError(Fault("gpu", repr(words), _known_gpus(words)))
    start, _, spelled = found[0]
    later = [at for at, _, _ in found if at > start]
    segment = text[start : later[0]] if later else text[start:]
    notes = []
    others = sorted({other for _, _, other in found[1:] if other != spelled})
    if others:
        notes.append(f"assumption: all GPUs are {spelled.upper()}, the first of those in {words!r}")
    named = _variant(spelled, segment, text, beside.lower())
    return NamedGpu(named.name, named.part, (*notes, *named.assumptions))


def _known_gpus(words: str) -> str:
    spelled = {part.spelled.upper() for part in hardware_parts().gpus.values()}
    close = nearest(spelled, words)
    hint = f" (did you mean {close!r}?)" if close else ""
    return f"a GPU among {', '.join(sorted(spelled))}{hint}, or {allowed_names(gpu_names())}"


def _mentions(text: str) -> Iterator[tuple[int, int, str]]:
    """Where families are named: place, minus length (longer first), family; no overlaps."""
    taken: list[range] = []
    for spelled in sorted(
        {p.spelled for p in hardware_parts().gpus.values()}, key=len, reverse=True
    ):
        loose = r"[\s_-]*".join(map(re.escape, spelled.split()))
        for match in re.finditer(_BEFORE + loose + r"(?!\d)", text):
            here = range(*match.span())
            if not any(here.start < other.stop and other.start < here.stop for other in taken):
                taken.append(here)
                yield here.start, -len(spelled), spelled


def _variant(spelled: str, segment: str, text: str, beside: str) -> NamedGpu:
    """Choose among the variants of a family by form and memory."""
    family = {name: p for name, p in hardware_parts().gpus.items() if p.spelled == spelled}
    forms: set[str] = {p.form for p in family.values()}
    notes = []
    form = next((f for words in (segment, text) for f in [_form(words, forms)] if f), None)
    if form is None and len(forms) > 1:
        form, why = _form_beside(beside, family)
        notes.append(f"assumption: {spelled.upper()} of form {form.upper()}, {why}")
    if form is not None:
        family = {name: p for name, p in family.items() if p.form == form}
    memory = re.search(r"(\d+)\s*gi?b?\b", segment)
    if memory is not None:
        size = int(memory[1])
        family = dict(sorted(family.items(), key=lambda item: abs(item[1].memory - size)))
    elif len({p.memory for p in family.values()}) > 1:
        notes.append(f"assumption: {next(iter(family.values())).memory} GB of memory per GPU")
    name, part = next(iter(family.items()))
    return NamedGpu(name, part, tuple(notes))


def _form(text: str, forms: set[str]) -> str | None:
    match = re.search(r"sxm\d?|pci-?e|nvl(?!ink)(?!72)|hgx|dgx[\s-]?2|dgx", text)
    if match is None:
        return None
    boards = {"hgx": "sxm", "dgx": "sxm", "dgx-2": "sxm3", "dgx2": "sxm3", "dgx 2": "sxm3"}
    said = boards.get(match[0], match[0].replace("pci-e", "pcie"))
    if said in forms:
        return said
    return next((form for form in sorted(forms) if said[:3] == form[:3] == "sxm"), None)


def _form_beside(beside: str, family: dict[str, GpuConnector]) -> tuple[str, str]:
    forms = [part.form for part in family.values()]
    if "bridge" in beside or ("pcie" in beside and "nvlink" not in beside):
        card = next((form for form in forms if form == "pcie"), forms[0])
        return card, "because its GPUs are joined by PCIe or bridges"
    if "sxm3" in forms and ("dgx-2" in beside or "dgx2" in beside or "nvswitch" in beside):
        return "sxm3", "because a switch joins them"
    return forms[0], "the usual one"


# ---------------------------------------------------------------- what joins GPUs


@dataclass(frozen=True, slots=True)
class Joined:
    """What words say about the inside of a host; None where they say nothing.

    Parameters
    ----------
    layout : Layout or None
    nvlink : bool
        Whether NVLink is named at all.
    lanes, lane_Bps : int, float
        NVLinks of one GPU, and the raw rate of each one way.
    generation : int
        Of NVLink.
    pcie : str
        Generation of PCIe: "pcie4".
    switches : bool
        PCIe switches (True), or straight under the CPUs (False).
    domains : int
        CPUs (NUMA domains).
    own_domains : bool
        Whether each GPU has a NUMA domain of its own.
    p2p : bool
        Whether GPUs copy to each other over PCIe.
    cpu : str
    """

    layout: Layout | None
    nvlink: bool
    lanes: int | None
    lane_Bps: float | None
    generation: int | None
    pcie: str | None
    switches: bool | None
    domains: int | None
    own_domains: bool
    p2p: bool | None
    cpu: str | None


_LAYOUTS: tuple[tuple[str, Layout], ...] = (
    (r"nv\s?switch|nvl72|dgx[\s-]?(2|[abh])|hgx", "nvswitch"),
    (r"cube|hcm\b|dgx[\s-]?1", "cube"),
    (r"bridge", "bridge"),
    (r"mesh|all[\s-]to[\s-]all|fully connected", "mesh"),
)


def joined_in(words: str) -> Joined:
    """Read what joins the GPUs of a host: "NVLink3 NVSwitch", "PCIe4 x16, two sockets"."""
    text = words.lower()
    nvlink = bool(re.search(r"nv\s?link|nvswitch|\bnv\d+\b", text))
    layout = next((name for word, name in _LAYOUTS if re.search(word, text)), None)
    if layout is None and not nvlink and re.search(r"pci|phb|\bsys\b|numa|root", text):
        layout = "pcie"
    each = re.search(r"(\d+)\s*(?:x|links? of|links? at)\s*(\d+(?:\.\d+)?)\s*gb", text)
    links = re.search(r"(\d+)\s*(?:nv)?links?\b|\bnv(\d+)\b", text)
    generation = re.search(r"nv\s?link[\s-]?v?(\d)(?![\d.])", text)
    pcie = re.search(r"pci-?e?[\s-]?(?:gen[\s-]?)?v?([1-6])(?!\d)", text)
    lanes = int(each[1]) if each else None
    if links and lanes is None and layout not in {"cube", "mesh"}:  # there: what one pair has
        lanes = int(links[1] or links[2])
    return Joined(
        layout=layout,
        nvlink=nvlink,
        lanes=lanes,
        lane_Bps=float(each[2]) * 1e9 if each else None,
        generation=int(generation[1]) if generation else None,
        pcie=f"pcie{pcie[1]}" if pcie else None,
        switches=_switches(text),
        domains=_domains(text),
        own_domains=bool(re.search(r"\bsys\b|gpu per numa|numa (node|domain) each", text)),
        p2p=_p2p(text),
        cpu=_cpu(text),
    )


def _switches(text: str) -> bool | None:
    if re.search(r"root (complex|port)|phb|\bnode\b|straight|direct", text):
        return False
    return True if re.search(r"pix|pxb|plx|(?<!nv)(?<!nv )switch", text) else None


def _domains(text: str) -> int | None:
    match = re.search(r"(one|two|single|dual|four|[1248])[\s-]*(?:socket|numa|cpu)", text)
    words = {"one": 1, "single": 1, "two": 2, "dual": 2, "four": 4}
    return None if match is None else words.get(match[1]) or int(match[1])


def _p2p(text: str) -> bool | None:
    if re.search(r"p2p[\s\w]*(unavailable|disabled|off|not)|(no|without)[\s-]p2p|\bshm\b", text):
        return False
    return True if "p2p" in text else None


def _cpu(text: str) -> str | None:
    if re.search(r"amd|epyc|rome|milan", text):
        return "epyc"
    for name in hardware_parts().cpus:
        if name in text:
            return name
    return None

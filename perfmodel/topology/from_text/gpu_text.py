"""GPUs, and what joins them inside a host, as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from perfmodel.errors import Fault, InputError, allowed_names, nearest
from perfmodel.topology.from_text.network_text import links_inside
from perfmodel.topology.from_text.parts import GpuConnector, Layout, hardware_parts
from perfmodel.topology.templates.gpus import gpu_names, load_gpu

_BEFORE = (
    r"(?:(?<![a-z0-9])|(?<=rtx)|(?<=gtx)|(?<=geforce)|(?<=tesla)|(?<=nvidia)|(?<=quadro)|(?<=\dx))"
)


def says_nothing(text: str) -> bool:
    """Whether a cell says that nothing is known: empty, "not stated", "unknown hardware"."""
    return not text.strip() or bool(
        re.search(r"not (?:stated|named|known)|unknown|^none$", text.lower())
    )


# ---------------------------------------------------------------- GPUs


@dataclass(frozen=True, slots=True)
class NamedGpu:
    """The GPU that a text names."""

    name: str
    """In the table of GPUs."""
    part: GpuConnector
    assumptions: tuple[str, ...] = ()
    """What the text left open."""
    form_stated: bool = True
    """Whether the text says board or card."""
    memory_GB: int | None = None
    """As stated; None: not stated."""
    others: str = ""
    """Text from the first GPU of another family on."""


def read_gpu(text: str, intra: str = "") -> NamedGpu:
    """Find the first GPU that a text names, in any usual spelling.

    `text`: "Tesla V100-SXM2-16GB", "H100 PCIe", "RTX 4090", or a name of the table, a user's own
    included. `intra`: what joins the GPUs; it decides between board and card where `text` does not.

    Raises `InputError`: no GPU that is known; the message lists those that are.

    Examples
    --------
    >>> read_gpu("NVIDIA A100-SXM4-80GB").name, read_gpu("H100 PCIe").name
    ('a100-sxm4-80gb', 'h100-pcie-80gb')
    """
    parts = hardware_parts().gpus
    if text in parts:
        return NamedGpu(text, parts[text], memory_GB=parts[text].memory)
    if text in gpu_names() and (similar := _same_generation(text)):
        note = f"assumption: {text} is plugged in like {similar}"
        return NamedGpu(text, parts[similar], (note,))
    folded = text.lower()
    mentions = sorted(_mentions(folded))
    if not mentions:
        raise InputError(Fault("gpu", repr(text), _known_gpus(text)))
    start, _, family = mentions[0]
    segment = folded[start : mentions[1][0]] if len(mentions) > 1 else folded[start:]
    other = next((at for at, _, spelled in mentions if spelled != family), None)
    named = _variant(family, segment, folded, intra.lower())
    if other is None:
        return named
    note = f"assumption: all GPUs are {family.upper()}, the first of those in {text!r}"
    return replace(named, assumptions=(note, *named.assumptions), others=text[other:].strip())


def _same_generation(gpu: str) -> str | None:
    """Name of a GPU on a board, of the generation of one in the user's own table."""
    generation = load_gpu(gpu).generation
    boards = (name for name, part in hardware_parts().gpus.items() if part.form != "pcie")
    return next((name for name in boards if load_gpu(name).generation == generation), None)


def _known_gpus(text: str) -> str:
    spelled = {part.spelled.upper() for part in hardware_parts().gpus.values()}
    close = nearest(spelled, text)
    hint = f" (did you mean {close!r}?)" if close else ""
    return f"a GPU among {', '.join(sorted(spelled))}{hint}, or {allowed_names(gpu_names())}"


def _mentions(text: str) -> Iterator[tuple[int, int, str]]:
    """Where families are named: position, minus length (longer first), family; no overlaps."""
    covered: list[range] = []
    families = {part.spelled for part in hardware_parts().gpus.values()}
    for spelled in sorted(families, key=len, reverse=True):
        loose = r"[\s_-]*".join(map(re.escape, spelled.split()))
        for match in re.finditer(_BEFORE + loose + r"(?!\d)", text):
            span = range(*match.span())
            if not any(span.start < other.stop and other.start < span.stop for other in covered):
                covered.append(span)
                yield span.start, -len(spelled), spelled


def _variant(spelled: str, segment: str, text: str, intra: str) -> NamedGpu:
    """Choose among the variants of a family by form and memory."""
    family = {name: p for name, p in hardware_parts().gpus.items() if p.spelled == spelled}
    forms: set[str] = {p.form for p in family.values()}
    notes = []
    form = stated = _form(segment, forms) or _form(text, forms)
    if form is None and len(forms) > 1:
        form, reason = _usual_form(intra, family)
        notes.append(f"assumption: {spelled.upper()} of form {form.upper()}, {reason}")
    if form is not None:
        family = {name: p for name, p in family.items() if p.form == form}
    memory = re.search(r"(\d+)\s*gi?b?\b", segment)
    memory_GB = int(memory[1]) if memory else None
    if memory_GB is not None:
        family = dict(sorted(family.items(), key=lambda row: abs(row[1].memory - memory_GB)))
    elif len({p.memory for p in family.values()}) > 1:
        notes.append(f"assumption: {next(iter(family.values())).memory} GB of memory per GPU")
    name, part = next(iter(family.items()))
    return NamedGpu(name, part, tuple(notes), stated is not None, memory_GB)


def _form(text: str, forms: set[str]) -> str | None:
    match = re.search(r"sxm\d?|pci-?e|nvl(?!ink)(?!72)|hgx|dgx[\s-]?2|dgx", text)
    if match is None:
        return None
    boards = {"hgx": "sxm", "dgx": "sxm", "dgx-2": "sxm3", "dgx2": "sxm3", "dgx 2": "sxm3"}
    form = boards.get(match[0], match[0].replace("pci-e", "pcie"))
    if form in forms:
        return form
    return next((other for other in sorted(forms) if form[:3] == other[:3] == "sxm"), None)


def _usual_form(intra: str, family: dict[str, GpuConnector]) -> tuple[str, str]:
    """Form by what joins the GPUs, and the reason."""
    forms = [part.form for part in family.values()]
    if "bridge" in intra or ("pcie" in intra and "nvlink" not in intra):
        card = next((form for form in forms if form == "pcie"), forms[0])
        return card, "because its GPUs are joined by PCIe or bridges"
    if "sxm3" in forms and ("dgx-2" in intra or "dgx2" in intra or "nvswitch" in intra):
        return "sxm3", "because a switch joins them"
    return forms[0], "the usual one"


# ---------------------------------------------------------------- what joins GPUs


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


def read_intra(text: str) -> IntraText:
    """Read what joins the GPUs of a host: "NVLink3 NVSwitch", "PCIe4 x16, two sockets".

    What the text says of the network between hosts does not count.
    """
    text = links_inside(text).lower()
    nvlink = bool(re.search(r"nv\s?link|nvswitch|\bnv\d+\b", text))
    layout = next((name for pattern, name in _LAYOUTS if re.search(pattern, text)), None)
    if layout is None and not nvlink and re.search(r"pci|pix|pxb|phb|\bsys\b|numa|root", text):
        layout = "pcie"
    each = re.search(r"(\d+)\s*(?:x|links? of|links? at)\s*(\d+(?:\.\d+)?)\s*gb", text)
    links = re.search(r"(\d+)\s*(?:nv)?links?\b|\bnv(\d+)\b", text)
    generation = re.search(r"nv\s?link[\s-]?v?(\d)(?![\d.])", text)
    pcie = re.search(r"pci-?e?[\s-]?(?:gen[\s-]?)?v?([1-6])(?!\d)", text)
    lanes = int(each[1]) if each else None
    if links and lanes is None and layout not in {"cube", "mesh"}:  # there: what one pair has
        lanes = int(links[1] or links[2])
    return IntraText(
        layout=layout,
        nvlink=nvlink,
        lanes=lanes,
        lane_Bps=float(each[2]) * 1e9 if each else None,
        generation=int(generation[1]) if generation else None,
        pcie=f"pcie{pcie[1]}" if pcie else None,
        switches=_switches(text),
        domains=_domains(text),
        own_domains=bool(re.search(r"\bsys\b|gpu per numa|numa (node|domain) each", text)),
        cpu=_cpu(text),
    )


def _switches(text: str) -> bool | None:
    if re.search(r"root (complex|port)|phb|\bnode\b|straight|direct", text):
        return False
    return True if re.search(r"pix|pxb|plx|(?<!nv)(?<!nv )switch", text) else None


def _domains(text: str) -> int | None:
    match = re.search(r"(one|two|single|dual|four|[1248])[\s-]*(?:socket|numa|cpu)", text)
    numerals = {"one": 1, "single": 1, "two": 2, "dual": 2, "four": 4}
    return None if match is None else numerals.get(match[1]) or int(match[1])


def _cpu(text: str) -> str | None:
    if re.search(r"amd|epyc|rome|milan", text):
        return "epyc"
    for name in hardware_parts().cpus:
        if name in text:
            return name
    return None


# ---------------------------------------------------------------- GPUs in use


def read_gpu_numbers(text: str) -> tuple[int, ...]:
    """GPUs of each host that ranks ran on, where a text lists them: ``"GPUs 0,2,4,6"``."""
    match = re.search(
        r"(?:gpus?|cuda_visible_devices)\s*[ =:]\s*(\d+(?:\s*,\s*\d+)+)", text.lower()
    )
    return tuple(int(number) for number in match[1].split(",")) if match else ()


def read_peer_access(text: str) -> bool | None:
    """Whether GPUs copy to each other over PCIe; None: not stated."""
    text = text.lower()
    denied = r"no[- ]?p2p|without p2p|p2p_disable\s*=\s*1|p2p[^,;]{0,20}(?:unavail|disab|off|not)"
    if re.search(denied, text):
        return False
    allowed = r"p2p[^,;]{0,20}(?:enab|patch|unlock|on\b)|patched driver"
    return True if re.search(allowed, text) else None

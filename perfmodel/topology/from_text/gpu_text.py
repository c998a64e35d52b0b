"""GPUs as people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

from perfmodel.errors import (
    Fault,
    InputError,
    allowed_names,
    failed,
    nearest,
    raise_faults,
    refuse_if,
)
from perfmodel.memo import first_applying
from perfmodel.topology.from_text.grammar import read_phrases, unread_words
from perfmodel.topology.from_text.parts import GpuConnector, hardware_parts
from perfmodel.topology.templates.gpus import gpu_names, gpu_spec, load_gpu

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
    memory_GB: float | None = None
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
        return _of_table(text, similar)
    folded = text.lower()
    mentions = [(found.start(), _spelled(found[0])) for found in _families().finditer(folded)]
    if not mentions:
        raise InputError(Fault("gpu", repr(text), _known_gpus(text)))
    start, family = mentions[0]
    segment = folded[start : mentions[1][0] if len(mentions) > 1 else None]
    other = next((at for at, spelled in mentions if spelled != family), None)
    named = _variant(family, segment, folded, intra.lower())
    if other is None:
        return named
    note = f"assumption: all GPUs are {family.upper()}, the first of those in {text!r}"
    return replace(named, assumptions=(note, *named.assumptions), others=text[other:].strip())


def _of_table(name: str, similar: str) -> NamedGpu:
    """A GPU of a user's table: as its entry says, and else like one of its generation."""
    spec, part = gpu_spec(name), hardware_parts().gpus[similar]
    card = spec.form == "card" or (spec.form is None and spec.nvlink is None)
    stated = spec.model_fields_set & {"form", "nvlink", "pcie"}
    fields: dict[str, object] = {"spelled": name, "memory": round(spec.memory / 1e9), "devices": ()}
    if stated:
        fields |= {
            "form": "pcie" if card else "sxm",
            "geforce": False,
            "c2c": None,
            "nvlink": None,
            "lanes": 0,
            "lane_Bps": None,
        }
    if spec.nvlink is not None:
        fields |= {
            "nvlink": part.nvlink or "nvlink4",
            "lanes": spec.nvlink.links,
            "lane_Bps": spec.nvlink.bandwidth,
        }
    if spec.pcie is not None:
        fields["pcie"] = spec.pcie.replace("gen", "pcie")
    note = f"assumption: {name} is plugged in like {similar}"
    return NamedGpu(name, part.model_copy(update=fields), () if len(stated) == 3 else (note,))


def _same_generation(gpu: str) -> str | None:
    """Name of a GPU of the generation of one in the user's own table, on a board if there is."""
    generation, parts = load_gpu(gpu).generation, hardware_parts().gpus
    ordered = sorted(parts, key=lambda name: parts[name].form == "pcie")
    return next((name for name in ordered if load_gpu(name).generation == generation), None)


def _known_gpus(text: str) -> str:
    folded = text.lower()
    for kind, names in hardware_parts().unmodelled.items():
        if any(re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z])", folded) for name in names):
            return f"GPUs of NVIDIA or AMD: {kind}"
    spelled = {part.spelled.upper() for part in hardware_parts().gpus.values()}
    close = nearest(spelled, text)
    hint = f" (did you mean {close!r}?)" if close else ""
    return f"a GPU among {', '.join(sorted(spelled))}{hint}, or {allowed_names(gpu_names())}"


@cache
def _families() -> re.Pattern[str]:
    """Names of families as people write them: longer ones first, with any space between words."""
    families = {part.spelled for part in hardware_parts().gpus.values()}
    loose = [
        r"[\s_-]*".join(map(re.escape, name.split()))
        for name in sorted(families, key=len, reverse=True)
    ]
    return re.compile(rf"{_BEFORE}(?:{'|'.join(loose)})(?!\d)")


def _spelled(mention: str) -> str:
    """The family that a mention names, as the table spells it."""
    bare = re.sub(r"[\s_-]", "", mention)
    families = (part.spelled for part in hardware_parts().gpus.values())
    return next(name for name in families if name.replace(" ", "") == bare)


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
    memory_GB = float(memory[1]) if memory else None  # 5,000 digits are infinity, and no GPU's
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
    alike = next((other for other in sorted(forms) if form[:3] == other[:3] == "sxm"), None)
    return form if form in forms else alike


def _usual_form(intra: str, family: dict[str, GpuConnector]) -> tuple[str, str]:
    """Form by what joins the GPUs, and the reason."""
    forms = [part.form for part in family.values()]
    card = "pcie" if "pcie" in forms else forms[0]
    cards = "bridge" in intra or ("pcie" in intra and "nvlink" not in intra)
    switched = "dgx-2" in intra or "dgx2" in intra or "nvswitch" in intra
    return first_applying(
        (cards, (card, "because its GPUs are joined by PCIe or bridges")),
        ("sxm3" in forms and switched, ("sxm3", "because a switch joins them")),
        (True, (forms[0], "the usual one")),
    )


# ---------------------------------------------------------------- GPUs alone


def read_stated_gpu(text: str) -> NamedGpu:
    """Find the GPU of a text of which every word is about it: "A100 40GB SXM".

    Raises `InputError`: a GPU that is not known, words about something else, or a form, a memory
    or a maker that this GPU does not have.
    """
    if text in gpu_names():
        return read_gpu(text)
    named = read_gpu(_family_first(text))
    phrases = read_phrases(text)
    unread = unread_words(text, "gpus")
    refuse_if(
        unread,
        "gpu",
        repr(unread),
        f"words on {named.part.spelled.upper()} alone: its form and memory",
    )
    words, part = next(phrase.words for phrase in phrases if phrase.subject == "gpus"), named.part
    form, memory, maker = (words.get(name, "").lower() for name in ("form", "memory", "maker"))
    stated_GB = float(re.sub(r"\D", "", memory) or part.memory)
    faults = failed(
        (
            form != "" and not _has_form(part, form),
            "gpu",
            repr(form),
            f"{part.form.upper()}, as {named.name} has",
        ),
        (
            named.memory_GB is not None and abs(stated_GB / part.memory - 1) > _SAME_MEMORY,
            "gpu",
            repr(memory),
            f"{part.memory} GB, as the nearest ({named.name}) has",
        ),
        (
            re.search("nvidia|geforce|tesla" if part.amd else "amd|instinct", maker),
            "gpu",
            repr(maker),
            f"another maker: {named.name} is not theirs",
        ),
    )
    raise_faults(faults)
    return named


def _has_form(part: GpuConnector, form: str) -> bool:
    """Return whether a GPU has the form that a text names, such as "sxm5".

    "hgx" and "dgx" are boards of SXM modules of any generation, "nvl72" has superchips.
    """
    own = form.replace("-", "")
    return first_applying(
        (form.startswith(("hgx", "dgx")), part.on_board),
        (form == "nvl72", part.form == "superchip"),
        (True, part.form.startswith(own) or (part.form == "sxm" and own.startswith("sxm"))),
    )


_SAME_MEMORY = 0.1
"""Share by which a stated memory may differ from the table's: 192 and 180 GB are both said of a
B200."""


def _family_first(text: str) -> str:
    """The same words with those before the family behind it: "40GB A100" as "A100 40GB"."""
    for phrase in read_phrases(text):
        if phrase.subject == "gpus" and "memory" in phrase.words:
            before, family, behind = text.lower().partition(phrase.words["family"].lower())
            return f"{family}{behind} {before}" if re.search(r"\dg", before) else text
    return text


# ---------------------------------------------------------------- GPUs in use


def read_gpu_numbers(text: str) -> tuple[int, ...]:
    """GPUs of each host that ranks ran on, where a text lists them: ``"GPUs 0,2,4,6"``."""
    match = re.search(
        r"(?:gpus?|cuda_visible_devices)\s*[ =:]\s*(\d+(?:\s*,\s*\d+)+)", text.lower()
    )
    return tuple(int(number) for number in match[1].split(",")) if match else ()

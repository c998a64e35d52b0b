"""The grammar of a node in one line: phrases on one subject each, in which every word has a class.

A phrase is made of words of one subject, each class at most once: "8x A100 40GB SXM" is the count,
family, memory and form of GPUs; "8x ConnectX-7 400G" the count, adapter and rate of NICs. Words
that belong to no phrase are kept apart, for a refusal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from perfmodel.errors import Fault, InputError, raise_faults
from perfmodel.topology.from_text.gpu_text import NamedGpu, read_gpu
from perfmodel.topology.from_text.network_text import read_pcie
from perfmodel.topology.from_text.parts import GpuConnector, hardware_parts
from perfmodel.topology.templates.gpus import gpu_names
from perfmodel.units import parse_bandwidth


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


_NVLINK = r"nv[\s-]?link"
_GPUDIRECT = r"(?:gpu ?direct(?: rdma)?|gdr(?:dma)?)"
_OFF = (
    r"(?:is )?(?:off|disabled|unavailable|unused|missing|not (?:in )?(?:use[d]?|available|enabled))"
)
_OF_PCIE = r"[\s-]*(?:gen|v)?[\s-]?[1-6](?:\.0)?(?![\d.]|\s*(?:x\b|gi?b))"
"""A generation behind PCIe, which is then a slot and no form of a GPU."""
_SUBJECTS: Mapping[str, Mapping[str, str]] = {
    "gpus": {
        "count": r"\d{1,4}(?:\s*x|(?=\s))",
        "form": rf"sxm\d?|pci-?e(?!{_OF_PCIE})|nvl(?:72)?|hgx|dgx(?:[\s-]?2)?"
        r"|oam",
        "memory": r"\d+\s*gi?b(?!/s)",
        "maker": r"nvidia|amd|instinct|tesla|geforce|quadro|rtx|gtx",
        "more": r"gpus?|cards?|tensor core|hbm\d?e?|blackwell|(?:server|workstation) edition",
    },
    "nvlink": {
        "alone": rf"(?:no|without|w/o|lacks|missing|unused|disabled) (?:any |an? )?"
        rf"(?:{_NVLINK}(?:[\s-]bridges?)?|nv[\s-]?switch)|{_NVLINK} {_OFF}",
        "link": rf"(?:{_NVLINK}(?:[\s-]?(?:v|gen(?:eration)?[\s-]?)?\d(?![\d.]|\s*(?:x|links?)\b))?"
        r"|nv\d+)",
        "switch": r"nv[\s-]?switch",
        "layout": r"(?:hybrid[\s-])?cube(?:[\s-]mesh)?|mesh|bridges?|all[\s-]to[\s-]all"
        r"|fully connected|hcm",
        "lanes": r"\d+\s*(?:x|links? (?:of|at))\s*\d+(?:\.\d+)?\s*gb(?:/s)?|\d+\s*(?:nv)?links?",
    },
    "p2p": {"alone": rf"(?:no|without)[\s-]p2p|p2p(?: (?:on|enabled|{_OFF}))?"},
    "gpudirect": {
        "alone": rf"(?:no|without) {_GPUDIRECT}|{_GPUDIRECT} (?:on|enabled|{_OFF})",
    },
    "power_limit": {"alone": r"\d+(?:\.\d+)?\s*k?w"},
    "pcie": {
        "name": r"pci(?:[\s-]?e(?:xpress)?)?",
        "generation": r"gen(?:eration)?[\s-]?[1-6](?:\.0)?|[1-6](?:st|nd|rd|th)[\s-]gen(?:eration)?"
        r"|v?[1-6](?:\.0)?(?!\s*x\b)",
        "lanes": r"x\s?\d+",
        "rate": r"(?:2\.5|5|8|16|32|64)(?:\.0)?\s*gt/s",
    },
    "nic": {
        "count": r"\d+\s*x",
        "rate": r"\d+(?:\.\d+)?\s*-?(?:g(?:ig)?(?:abit)?(?:it|bit)?(?:/s|ps)?e?|gbps|gb/s|gbe|gb"
        r"|gibi?/s|[mt](?:bit(?:/s)?|bps|b/s))",
        "generation": r"[qfehnx]dr\d*",
        "adapter": r"(?:connect[\s-]?x|cx)[\s-]?\d?(?:[\s-](?:dx|lx|vpi))?",
        "kind": r"infini[\s-]?band|ib|ipoib|(?:aws )?efa(?:v\d)?|srd|ena|roce(?:[\s-]?v[12])?"
        r"|(?:gigabit )?ethernet|omni[\s-]?path|opa|tcp(?: sockets?)?|tcpxo?|fastrak"
        r"|gpudirect-tcpxo?|slingshot|rdma|gvnic",
        "more": r"nics?|hcas?|adapters?|mellanox|network|each|per (?:node|host|server)",
    },
    "sockets": {
        "count": r"one|two|single|dual|four|[1248](?:\s*x)?",
        "maker": r"amd|intel",
        "place": r"sockets?|cpus?|xeons?|numa (?:nodes?|domains?)",
        "apart": r"(?:separate|different|distinct|both|opposite|across|cross)[\s-](?:the )?"
        r"(?:two )?(?:cpu )?(?:sockets?|cpus?|numa|packages?)(?: (?:nodes?|domains?))?",
    },
}
"""Subjects of a node, and for each the classes of its words."""
_HEADS: Mapping[str, frozenset[str]] = {
    "gpus": frozenset({"family"}),
    "nvlink": frozenset({"alone", "link", "switch", "layout"}),
    "pcie": frozenset({"name", "generation"}),
    "nic": frozenset({"rate", "generation", "adapter", "kind"}),
    "sockets": frozenset({"place", "apart", "cpu"}),
}
"""Classes without one of which words are no phrase; other subjects have one class."""
_REPEATED = frozenset({"maker", "more"})
_OPEN = frozenset({"count", "maker", "name"})
"""Classes that the next word may follow at once: 8xH100, RTX4090, PCIe5."""
_BETWEEN_WORDS = re.compile(r"[\s_:@-]*(?:(?:of|at)\s+)?", re.IGNORECASE)
_BETWEEN_PHRASES = re.compile(r"(?:[\s,;+()&]|(?:with|and|plus)\b)*", re.IGNORECASE)
_UNREAD = re.compile(r"[^\s,;+()&]+|\S")


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words of a text on one subject."""

    subject: str
    """A key of the table; empty: no subject has these words."""
    text: str
    words: Mapping[str, str]
    """Each word by its class, in lower case."""


@lru_cache(maxsize=4)
def _patterns(gpus: tuple[str, ...]) -> dict[str, dict[str, re.Pattern[str]]]:
    """Words of each subject; those of GPUs and CPUs with the names in the tables of parts."""
    spelled = {part.spelled for part in hardware_parts().gpus.values()}
    families = [re.escape(name) for name in gpus]
    families += [r"[\s_-]*".join(map(re.escape, name.split())) for name in spelled]
    longest_first = sorted(families, key=len, reverse=True)
    cpus = "|".join(map(re.escape, hardware_parts().cpus))
    own = {"gpus": {"family": "|".join(longest_first)}, "sockets": {"cpu": cpus}}
    return {
        subject: {
            name: re.compile(
                f"(?:{words})" + ("" if name in _OPEN else r"(?![a-z0-9]|\.\d)"), re.IGNORECASE
            )
            for name, words in (own.get(subject, {}) | dict(classes)).items()
        }
        for subject, classes in _SUBJECTS.items()
    }


def read_phrases(text: str) -> list[Phrase]:
    """Split a text into phrases, in order; no word is left out.

    Examples
    --------
    >>> [(each.subject, each.text) for each in read_phrases("8x A100 40GB with 2x 100GbE banana")]
    [('gpus', '8x A100 40GB'), ('nic', '2x 100GbE'), ('', 'banana')]
    """
    patterns = _patterns(tuple(gpu_names()))
    phrases: list[Phrase] = []
    begun = at = _skip(_BETWEEN_PHRASES, text, 0)
    while at < len(text):
        found = (_phrase(subject, patterns[subject], text, at) for subject in patterns)
        longest = max(found, key=lambda phrase: len(phrase.text))
        if not longest.text:
            longest = Phrase("", text[at : _skip(_UNREAD, text, at)], {})
        if phrases and phrases[-1].subject == longest.subject == "":
            longest = Phrase("", text[begun : at + len(longest.text)], {})
            del phrases[-1]
        else:
            begun = at
        phrases.append(longest)
        at = _skip(_BETWEEN_PHRASES, text, begun + len(longest.text))
    return phrases


def _phrase(subject: str, classes: Mapping[str, re.Pattern[str]], text: str, start: int) -> Phrase:
    """The longest phrase on a subject that begins here; empty where there is none."""
    words: dict[str, str] = {}
    at = end = start
    while at < len(text):
        matches = {
            name: match
            for name, pattern in classes.items()
            if (name not in words or name in _REPEATED)
            and (name != "count" or not words)
            and (match := pattern.match(text, at))
        }
        if not matches:
            break
        name = max(matches, key=lambda key: matches[key].end())
        if name == "alone" and words:
            break
        words[name] = f"{words.get(name, '')} {matches[name][0].lower()}".strip()
        end = matches[name].end()
        if name == "alone":
            break
        at = _skip(_BETWEEN_WORDS, text, end)
    has_head = words.keys() & _HEADS.get(subject, frozenset({"alone"}))
    return Phrase(subject, text[start:end], words) if has_head else Phrase(subject, "", {})


def _skip(separator: re.Pattern[str], text: str, at: int) -> int:
    match = separator.match(text, at)
    return match.end() if match else at


def unread_words(text: str, subject: str) -> str:
    """Return the words of a text that are not its phrase on a subject; "" if there are none."""
    phrases = read_phrases(text)
    own = next((phrase for phrase in phrases if phrase.subject == subject), None)
    return " ".join(phrase.text for phrase in phrases if phrase is not own)


# ---------------------------------------------------------------- words that contradict each other


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
    if unread:
        raise InputError(
            Fault(
                "gpu",
                repr(unread),
                f"words on {named.part.spelled.upper()} alone: its form and memory",
            )
        )
    words, part = next(phrase.words for phrase in phrases if phrase.subject == "gpus"), named.part
    form, memory, maker = (words.get(name, "") for name in ("form", "memory", "maker"))
    stated_GB = int(re.sub(r"\D", "", memory) or part.memory)
    others = "nvidia|geforce|tesla" if part.amd else "amd|instinct"
    cases = (
        (
            form != "" and not _has_form(part, form),
            form,
            f"{part.form.upper()}, as {named.name} has",
        ),
        (
            named.memory_GB is not None and abs(stated_GB / part.memory - 1) > _SAME_MEMORY,
            memory,
            f"{part.memory} GB, as the nearest ({named.name}) has",
        ),
        (
            re.search(others, maker) is not None,
            maker,
            f"another maker: {named.name} is not theirs",
        ),
    )
    raise_faults(Fault("gpu", repr(found), allowed) for wrong, found, allowed in cases if wrong)
    return named


def _has_form(part: GpuConnector, form: str) -> bool:
    """Return whether a GPU has the form that a text names, such as "sxm5".

    "hgx" and "dgx" are boards of SXM modules of any generation, "nvl72" has superchips.
    """
    if form.startswith(("hgx", "dgx")):
        return part.on_board
    if form == "nvl72":
        return part.form == "superchip"
    own = form.replace("-", "")
    return part.form.startswith(own) or (part.form == "sxm" and own.startswith("sxm"))


_SAME_MEMORY = 0.1
"""Share by which a stated memory may differ from the table's: 192 and 180 GB are both said of a
B200."""


def _family_first(text: str) -> str:
    """The same words with those before the family behind it: "40GB A100" as "A100 40GB"."""
    for phrase in read_phrases(text):
        if phrase.subject == "gpus" and "memory" in phrase.words:
            before, family, behind = text.lower().partition(phrase.words["family"])
            return f"{family}{behind} {before}" if re.search(r"\dg", before) else text
    return text


def adapter_rate(text: str) -> float | None:
    """Return the rate of the adapter that a text names, ConnectX-7; bytes per second."""
    adapter = re.search(r"\b(?:connect[\s-]?x|cx)[\s-]?(\d)", text, re.IGNORECASE)
    rates = hardware_parts().adapters
    return parse_bandwidth(rates[adapter[1]]) if adapter and adapter[1] in rates else None

"""The grammar of hardware in words: phrases on one subject each, in which every word has a class.

A phrase is made of words of one subject, each class at most once: "8x A100 40GB SXM" is the count,
family, memory and form of GPUs; "8x ConnectX-7 400G" the count, adapter and rate of NICs. Words
that belong to no phrase are kept apart, for a refusal or a note.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from perfmodel.topology.from_text.parts import hardware_parts
from perfmodel.topology.templates.gpus import gpu_names

_NVLINK = r"nv[\s-]?link"
GPUDIRECT = r"(?:gpu ?direct(?: rdma)?|gdr(?:dma)?)"
_OFF = (
    r"(?:is |are |evidently |apparently )?(?:off|disabled|unavailable|unused|missing|absent"
    r"|not (?:in )?(?:use[d]?|available|enabled|installed))"
)
_OF_PCIE = r"[\s-]*(?:gen|v)?[\s-]?[1-6](?:\.0)?(?![\d.]|\s*(?:x\b|gi?b))"
"""A generation behind PCIe, which is then a slot and no form of a GPU."""
_SUBJECTS: Mapping[str, Mapping[str, str]] = {
    "gpus": {
        "count": r"\d{1,4}(?:\s*x|(?=\s))",
        "form": rf"sxm\d?|pci-?e(?!{_OF_PCIE})|nvl(?:72)?|hgx|dgx(?:[\s-]?[12])?"
        r"|oam",
        "memory": r"\d+\s*gi?b(?!/s)",
        "maker": r"nvidia|amd|instinct|tesla|geforce|quadro|rtx|gtx",
        "more": r"gpus?|cards?|tensor core|hbm\d?e?|blackwell|(?:server|workstation) edition",
    },
    "nvlink": {
        "alone": rf"(?:no|without|w/o|lacks|missing|unused|disabled) (?:any |an? )?"
        rf"(?:{_NVLINK}\d?(?:[\s-]bridges?)?|nv[\s-]?switch)"
        rf"|{_NVLINK}\d?(?:[\s-]bridges?(?: on pairs,)?)? {_OFF}",
        "link": rf"(?:{_NVLINK}(?:[\s-]?(?:v|gen(?:eration)?[\s-]?)?\d(?![\d.]|\s*(?:x|links?)\b))?"
        r"|nv\d+)",
        "switch": r"nv[\s-]?switch",
        "layout": r"(?:hybrid[\s-])?cube(?:[\s-]mesh)?|mesh|bridges?|all[\s-]to[\s-]all"
        r"|fully connected|hcm",
        "lanes": r"\d+\s*(?:x|links? (?:of|at))\s*\d+(?:\.\d+)?\s*gb(?:/s)?|\d+\s*(?:nv)?links?",
    },
    "p2p": {
        "alone": rf"(?:no|without)[\s-]p2p|p2p(?: (?:on|enabled|{_OFF}))?(?: by patched driver)?"
    },
    "gpudirect": {
        "alone": rf"(?:no|without) {GPUDIRECT}|{GPUDIRECT} (?:on|enabled|forced|{_OFF})",
    },
    "power_limit": {"alone": r"\d+(?:\.\d+)?\s*k?w"},
    "pcie": {
        "name": r"pci(?:[\s-]?e(?:xpress)?)?",
        "generation": r"gen(?:eration)?[\s-]?[1-6](?:\.0)?"
        r"|[1-6](?:st|nd|rd|th)[\s-]gen(?:eration)?",
        "number": r"v?[1-6](?:\.0)?(?!\s*x\b)",
        "lanes": r"x\s?\d+",
        "rate": r"(?:2\.5|5|8|16|32|64)(?:\.0)?\s*gt/s",
    },
    "nic": {
        "count": r"\d+\s*x",
        "rate": r"\d+(?:\.\d+)?\s*-?(?:g(?:ig)?(?:abit)?(?:it|bit)?(?:/s|ps)?e?|gbps|gb/s|gbe|gb"
        r"|gibi?/s|[mt](?:bit(?:/s)?|bps|b/s))",
        "generation": r"[qfehnx]dr\d*",
        "adapter": r"(?:connect[\s-]?x|cx)[\s-]?\d?(?:[\s-](?:dx|lx|vpi))?",
        "kind": r"infini[\s-]?band|ib|ipoib|(?:aws )?efa(?:[\s-]?v\d)?|srd|ena|roce(?:[\s-]?v[12])?"
        r"|(?:gigabit )?ethernet|omni[\s-]?path|opa|tcp(?: sockets?)?|tcpxo?|fastrak"
        r"|gpudirect-tcpxo?|slingshot|rdma|gvnic",
        "more": r"nics?|hcas?|adapters?|switch(?:es)?|mellanox|network|each"
        r"|per (?:node|host|server)",
    },
    "sockets": {
        "count": r"one|two|single|dual|four|[1248](?:\s*x)?",
        "maker": r"amd|intel",
        "place": r"sockets?|cpus?|xeons?|numa (?:nodes?|domains?)",
        "apart": r"(?:separate|different|distinct|both|opposite|across|cross|(?:on |in )?(?:the )?"
        r"(?:other|same)|each|gpu per|gpus? (?:under|on) (?:its own|different)|nic per|per)"
        r"[\s-](?:the )?(?:two )?(?:cpu )?(?:sockets?|cpus?|numa|packages?)"
        r"(?: (?:nodes?|domains?))?",
    },
}
"""Subjects of a node, and for each the classes of its words."""
_PROSE: Mapping[str, Mapping[str, str]] = {
    "lanes": {"count": r"\d+\s*x", "rate": r"\d+(?:\.\d+)?\s*g(?-i:B)/s"},
    "path": {
        "alone": r"sys(?: everywhere)?|phb|p[ix]x|pxb|node|root (?:complex|ports?)|straight|direct"
        r"|(?:pci-?e )?switch(?:es)?",
    },
    "mtu": {"alone": r"(?:rdma )?mtu\s*(?:of|=|:)?\s*\d{3,5}"},
    "rack": {
        "alone": rf"mnnvl|multi-?node {_NVLINK}|(?:\d+|one|two|three|four|six|eight)[\s-]*racks?",
    },
    "setting": {
        "alone": r"[a-z][a-z0-9]*_[a-z0-9_]+\s*=\s*[^\s,;()]+"
        rf"|(?:no |without )?(?:{_NVLINK} )?(?:sharp|nvls|collnet|pxn|shm)(?: {_OFF})?",
    },
    "nothing": {"alone": r"none|no network|nan|(?:not stated|unknown)(?: hardware)?"},
}
"""What prose says beside them, and a node in one line does not."""
_HEADS: Mapping[str, frozenset[str]] = {
    "gpus": frozenset({"family"}),
    "nvlink": frozenset({"alone", "link", "switch", "layout"}),
    "pcie": frozenset({"name", "generation"}),
    "lanes": frozenset({"rate"}),
    "nic": frozenset({"rate", "generation", "adapter", "kind"}),
    "sockets": frozenset({"place", "apart", "cpu"}),
}
"""Classes without one of which words are no phrase; other subjects have one class."""
_REPEATED = frozenset({"maker", "more"})
_OPEN = frozenset({"count", "maker", "name"})
"""Classes that the next word may follow at once: 8xH100, RTX4090, PCIe5."""
_BETWEEN_WORDS = re.compile(r"[\s_:@(-]*(?:(?:of|at)\s+)?", re.IGNORECASE)
_BETWEEN_PHRASES = re.compile(r"(?:[\s,;+()&/]|(?:with|and|plus)\b)*", re.IGNORECASE)
_UNREAD = re.compile(r"[^\s,;+()&/]+|\S")


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words of a text on one subject."""

    subject: str
    """A key of the table; empty: no subject has these words."""
    text: str
    words: Mapping[str, str]
    """Each word by its class."""


@lru_cache(maxsize=4)
def _patterns(gpus: tuple[str, ...], *, prose: bool) -> dict[str, dict[str, re.Pattern[str]]]:
    """Words of each subject; those of GPUs and CPUs with the names in the tables of parts."""
    spelled = {part.spelled for part in hardware_parts().gpus.values()}
    families = [
        *(re.escape(name) for name in gpus),
        *(r"[\s_-]*".join(map(re.escape, name.split())) for name in spelled),
    ]
    longest_first = sorted(families, key=len, reverse=True)
    cpus = "|".join(map(re.escape, hardware_parts().cpus))
    clouds = (name for cloud in hardware_parts().clouds.values() for name in cloud.spelled)
    machines = (name for names in hardware_parts().machines.values() for name in names)
    places = "|".join(map(re.escape, (*machines, *clouds, *hardware_parts().pods)))
    own = {"gpus": {"family": "|".join(longest_first)}, "sockets": {"cpu": cpus}}
    machine = {"alone": rf"(?:{places})(?:[.-][a-z0-9.]+)?"}
    subjects = {**_PROSE, **_SUBJECTS, "machine": machine} if prose else _SUBJECTS
    return {
        subject: {
            name: re.compile(
                f"(?:{words})" + ("" if name in _OPEN else r"(?![a-z0-9]|\.\d)"), re.IGNORECASE
            )
            for name, words in (own.get(subject, {}) | dict(classes)).items()
        }
        for subject, classes in subjects.items()
    }


def read_phrases(text: str, *, prose: bool = False) -> list[Phrase]:
    """Split a text into phrases, in order; no word is left out.

    `prose`: whether phrases may also name machines, settings and paths.

    Examples
    --------
    >>> [(each.subject, each.text) for each in read_phrases("8x A100 40GB with 2x 100GbE banana")]
    [('gpus', '8x A100 40GB'), ('nic', '2x 100GbE'), ('', 'banana')]
    """
    patterns = _patterns(tuple(gpu_names()), prose=prose)
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
            and not _contradicts(words, name, match[0])
        }
        if not matches:
            break
        name = max(matches, key=lambda key: matches[key].end())
        if name == "alone" and words:
            break
        words[name] = f"{words.get(name, '')} {matches[name][0]}".strip()
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


# ---------------------------------------------------------------- words of prose

_PLAIN = re.compile(
    r"an?|the|at|of|in|on|per|each|for|from|is|are|by|to|as|inside|within|between|across|over|via"
    r"|all|used?|(?:\d+-)?(?:gpus?|nodes?|hosts?|servers?|machines?)|network|ip|[\W_]*",
    re.IGNORECASE,
)
"""Words of sentences that say nothing of a machine by themselves."""
_QUANTITY = re.compile(
    r"\d\s*-?(?:[kmgt]i?b\S*|[kmgt]bit\S*|[kmg]?hz|k?w|gt/s|x|links?|lanes?|nics?|ports?)(?![a-z])",
    re.IGNORECASE,
)
"""A number with a unit or with what it counts."""
_ONE_VALUE = ("count", "rate", "generation", "number", "memory", "form")
"""Classes of which a host has one word, so that a second and other one has not acted."""


def passed_over(text: str, subjects: Collection[str]) -> tuple[str, ...]:
    """Return the words of prose that do not act, for a note.

    They belong to no phrase, or to one on other subjects than those that are read here, or
    contradict an earlier phrase. Plain words alone ("per node") are left out.

    Examples
    --------
    >>> passed_over("NVLink3 in each node, liquid cooled, 500 W, NVLink off", ["nvlink"])
    ('liquid cooled', '500 W', 'NVLink off')
    """
    said: dict[tuple[str, str], str] = {}
    over = dict[str, None]()
    for phrase in read_phrases(text, prose=True):
        stated = _stated_values(phrase)
        plain = all(map(_PLAIN.fullmatch, re.split(r"[\s:]+", phrase.text)))
        faults = (
            phrase.subject not in subjects and not plain,
            any(said.get(key, value) != value for key, value in stated.items()),
            phrase.subject == "pcie" and "name" not in phrase.words,
        )
        if any(faults):
            over[phrase.text] = None
        said = stated | said
    return tuple(over)


def _stated_values(phrase: Phrase) -> dict[tuple[str, str], str]:
    """What a phrase states of which a host has one: by subject and class."""
    words, subject = phrase.words, phrase.subject
    stated = {name: re.sub(r"\W", "", words[name]).lower() for name in _ONE_VALUE if name in words}
    if subject == "nvlink":
        layout = "switch" if "switch" in words else words.get("layout", "").lower()
        stated |= {
            "use": "off" if "alone" in words else "on",
            **({"layout": layout} if layout else {}),
        }
    if subject == "nic":
        named = _FABRIC.search(phrase.text)
        stated |= {"fabric": "InfiniBand" if named[1] else "Ethernet"} if named else {}
        stated.pop("generation", None)
        rate_Bps = nic_rate(words)
        stated |= {} if rate_Bps is None else {"rate": f"{rate_Bps:g}"}
    return {(subject, name): value for name, value in stated.items()}


_FABRIC = re.compile(
    r"(infini|\bib\b|[qfehnx]dr|omni|\bopa\b)|ethernet|gbe\b|roce|\befa|tcp|slingshot",
    re.IGNORECASE,
)
"""Names of InfiniBand, and of Ethernet."""


def _contradicts(words: Mapping[str, str], name: str, word: str) -> bool:
    """Whether a word says another thing of a part than those of its phrase: an EDR of 400G."""
    if {name, *words} >= {"switch", "layout"}:
        return name in {"switch", "layout"}
    pair = {**words, name: word}
    if name not in {"rate", "generation"} or not {"rate", "generation"} <= pair.keys():
        return False
    generation_Bps = nic_rate({"generation": pair["generation"]})
    ethernet = re.search("gb?e", pair["rate"], re.IGNORECASE) is not None
    return generation_Bps is not None and (ethernet or generation_Bps != nic_rate(pair))


def nic_rate(words: Mapping[str, str]) -> float | None:
    """Return the rate that the words on a NIC state, or the generation's; bytes per second.

    A large B behind the prefix is of bytes.

    Examples
    --------
    >>> [nic_rate({"rate": rate}) for rate in ("25 GB/s", "100 Gb/s")]
    [25000000000.0, 12500000000.0]
    """
    rate = re.match(r"([\d.]+)\s*-?([gmt])(i?B(?:/s|ps))?", words.get("rate", ""), re.IGNORECASE)
    if rate:
        bits = 8 if rate[3] and "B" in rate[3] else 1
        return float(rate[1]) * bits * _SCALE[rate[2].lower()] / 8
    name = words.get("generation", "").lower()
    rates_Bps = hardware_parts().infiniband
    return rates_Bps.get(name, rates_Bps.get(name.rstrip("0123456789")))


_SCALE = {"m": 1e6, "g": 1e9, "t": 1e12}
"""Prefixes of units."""


def is_hardware(words: str) -> bool:
    """Whether words that nobody knows look like hardware: a quantity, a model, a misspelling.

    Examples
    --------
    >>> [is_hardware(text) for text in ("3.2 GHz", "Zen4", "NVLonk", "two TPUs", "liquid cooled")]
    [True, True, True, True, False]
    """
    folded = words.lower()
    kinds = (name for names in hardware_parts().unmodelled.values() for name in names)
    unmodelled = "|".join(map(re.escape, kinds))
    return (
        re.search(rf"[a-z]\d|\d[a-z]|\b(?:{unmodelled})s?\b", folded) is not None
        or _QUANTITY.search(folded) is not None
        or any(get_close_matches(word, _SPELLED, 1, _MISSPELT) for word in folded.split())
    )


_MISSPELT = 0.8
"""Similarity (of `difflib`) from which a word is a known one with a slip."""
_SPELLED = (
    "nvlink",
    "nvswitch",
    "infiniband",
    "ethernet",
    "connectx",
    "gpudirect",
    "pcie",
    "roce",
    "socket",
    "bridge",
    "slingshot",
    "omnipath",
)
"""Words of the subjects that people misspell."""

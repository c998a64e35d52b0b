"""Nodes in one line: every word acts, or is named in a refusal."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.topology.composed.load import load_node
from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.from_text.gpu_text import read_stated_gpu
from perfmodel.topology.from_text.grammar import read_phrases
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import NodeSpec


def parts_of(node: NodeSpec) -> dict[str, object]:
    """What a node is made of, without its name: GPU, devices by kind, rates by link, access."""
    counts = Counter(spec.kind for spec in node.nodes for _ in expand_pattern(spec.id))
    used = {edge.link for edge in node.edges} | {spec.port for spec in node.nodes if spec.port}
    return {
        "gpu": (node.gpu, counts["gpu"]),
        "nvlink": tuple(sorted((n, node.links[n].bandwidth) for n in used if "nvlink" in n)),
        "nvswitch": counts["nvswitch"],
        "nic": (
            counts["nic"],
            {node.links[spec.port].bandwidth for spec in node.nodes if spec.port},
        ),
        "p2p": node.gpu_p2p,
        "cpu": counts["cpu"],
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8x A100 40GB without NVLink", {"nvlink": (), "nvswitch": 0}),
        ("2x RTX 3090 NVLink", {"nvlink": (("nvlink3-bridge", 14.0625e9),)}),
        ("4x L40S with 2x 100GbE", {"gpu": ("l40s", 4), "nic": (2, {12.5e9})}),
        (
            "8x H100 SXM with 4x ConnectX-7 400G",
            {"gpu": ("h100-sxm5-80gb", 8), "nic": (4, {50e9})},
        ),
        ("8x A100 40GB SXM + 8x ConnectX-7", {"gpu": ("a100-sxm4-40gb", 8), "nic": (8, {50e9})}),
        ("8x A100 PCIe gen4 x16, 25 GbE", {"gpu": ("a100-pcie-40gb", 8), "nvlink": ()}),
        ("8 x 40GB A100", {"gpu": ("a100-sxm4-40gb", 8)}),
        (
            "8x A100 (80GB)",
            {
                "gpu": ("a100-sxm4-80gb", 8),
            },
        ),
        ("2x A100 PCIe NVLink gen3 bridge and two sockets", {"gpu": ("a100-pcie-40gb", 2)}),
        ("2 x rtx-4090 P2P enabled, 10 GbE", {"p2p": True, "nic": (1, {1.25e9})}),
    ],
)
def test_every_word_acts(text: str, expected: dict[str, object]) -> None:
    parts = parts_of(load_node(text))
    assert {key: parts[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1x H100 PCIe + 1x L4", "one kind of GPU in a node"),
        ("2x RTX 4090 banana", "'banana' in"),
        ("4x A100 SXM PCIe", "pcie 'PCIe'"),
        ("8x H100 40GB", "80 GB"),
        ("4x L40S SXM", "PCIE, as l40s"),
        ("8x A100 SXM5", "SXM4"),
        ("8x AMD A100", "another maker"),
        ("8x H100, 8x ConnectX-6 400G", "at most 200 Gbit/s"),
        ("8x H100, 8x HDR, 4x 100GbE", "beside another nic"),
        ("8x A100 NVLink no", "'no' in"),
        ("8x H100 without network", "'without network' in"),
        ("8x H100, 8x EDR 400G", "beside another nic"),
        ("2x RTX 4090 3", "'3' in"),
        ("8x TPU v4", "TPUs of Google are named by a template"),
        ("8x Gaudi2 with 100GbE", "Gaudi of Intel"),
        ("4x Intel Ponte Vecchio", "GPUs of Intel"),
    ],
)
def test_what_cannot_act_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        load_node(text)
    assert said in str(raised.value)


def test_a_gpu_of_a_field_has_no_other_words() -> None:
    assert read_stated_gpu("NVIDIA H100 80GB HBM3").name == "h100-sxm5-80gb"
    with pytest.raises(InputError, match="'8x 400G'"):
        read_stated_gpu("A100 with 8x 400G")


GPUS = ("2x RTX 3090", "8x A100 40GB SXM", "4x V100 PCIe 16GB", "2x NVIDIA H100 80GB PCIe")
PHRASES = {
    "nvlink": ("NVLink", "without NVLink", "no NVSwitch"),
    "nic": ("2x 100GbE", "8x ConnectX-7 200G", "4x HDR InfiniBand", "10 GbE"),
    "cpu": ("two sockets", "dual socket"),
    "p2p": ("no P2P", "P2P enabled"),
}
SEPARATORS = (", ", " with ", " ", " and ")


@st.composite
def descriptions(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(GPUS))
    for subject in draw(st.permutations(sorted(PHRASES)))[: draw(st.integers(0, 2))]:
        text += draw(st.sampled_from(SEPARATORS)) + draw(st.sampled_from(PHRASES[subject]))
    return text


def parts_or_none(text: str) -> dict[str, object] | None:
    try:
        return parts_of(load_node(text))
    except InputError:
        return None


@given(descriptions(), st.data())
def test_a_word_put_in_is_refused(text: str, data: st.DataObject) -> None:
    words = text.split(" ")
    at = data.draw(st.integers(1, len(words)))
    word = data.draw(st.sampled_from(("banana", "cooled", "TPU", "not", "maybe", "NVLonk", "x2")))
    changed = " ".join([*words[:at], word, *words[at:]])
    with pytest.raises(InputError):
        load_node(changed)


@pytest.mark.slow
@given(descriptions(), st.data())
def test_a_word_left_out_changes_what_it_was_about_or_is_refused(
    text: str, data: st.DataObject
) -> None:
    whole = parts_or_none(text)
    words = text.split(" ")
    at = data.draw(st.integers(0, len(words) - 1))
    less = parts_or_none(" ".join([*words[:at], *words[at + 1 :]]))
    if whole is None or less is None:
        return
    start = len(" ".join(words[:at]))
    about = subject_at(text, start + (at > 0))
    assert {key for key in whole if whole[key] != less[key]} <= MAY_CHANGE[about]


def subject_at(text: str, position: int) -> str:
    """The subject of the phrase that holds this position; empty between phrases."""
    end = 0
    for phrase in read_phrases(text):
        start = text.index(phrase.text, end)
        end = start + len(phrase.text)
        if start <= position < end:
            return phrase.subject
    return ""


MAY_CHANGE = {
    "": set(),
    "gpus": {"gpu", "nvlink", "nvswitch", "nic", "cpu", "p2p"},
    "nvlink": {"nvlink", "nvswitch", "nic", "cpu"},  # a usual node may be a template, with NICs
    "nic": {"nic"},
    "sockets": {"cpu"},
    "p2p": {"p2p"},
}


@pytest.mark.slow
@given(descriptions(), st.data())
def test_a_word_moved_changes_nothing_or_is_refused(text: str, data: st.DataObject) -> None:
    words = text.replace(",", " ,").split()
    at = data.draw(st.integers(0, len(words) - 1))
    others = [*words[:at], *words[at + 1 :]]
    to = data.draw(st.integers(0, len(others)))
    moved = parts_or_none(" ".join([*others[:to], words[at], *others[to:]]))
    assert moved is None or moved == parts_or_none(text)


def test_a_count_begins_a_phrase_and_never_ends_one() -> None:
    """The NICs behind GPUs without a count keep theirs."""
    phrases = [(each.subject, each.text) for each in read_phrases("A100 2x 100GbE")]
    assert phrases == [("gpus", "A100"), ("nic", "2x 100GbE")]


# ---------------------------------------------------------------- prose

LINKS = {
    "nvlink": ("NVLink3 NVSwitch", "NVLink bridge", "no NVLink", "NVLink3 not in use"),
    "pcie": ("PCIe4 x16", "PCI Express 3.0", "Gen4 PCIe"),
    "sockets": ("two sockets", "dual Xeon", "separate sockets"),
    "p2p": ("no P2P", "P2P enabled"),
}
NETWORKS = (
    "2x 100GbE",
    "4x HDR InfiniBand",
    "8 x 200 Gbit/s RoCE v2",
    "RoCE v2 25 GbE, GPUDirect disabled",
    "InfiniBand EDR",
    "AWS EFA",
    "4x 100 Gb InfiniBand per node",
)


@st.composite
def paragraphs(draw: st.DrawFn) -> tuple[str, str]:
    """Texts about the links inside a host, and about its network."""
    subjects = draw(st.lists(st.sampled_from(sorted(LINKS)), min_size=1, max_size=3, unique=True))
    joint = draw(st.sampled_from((", ", "; ", " with ", " and ")))
    links = joint.join(draw(st.sampled_from(LINKS[subject])) for subject in subjects)
    return links, draw(st.sampled_from(NETWORKS))


def described(gpu: str, links: str, network: str) -> tuple[dict[str, object], bool] | None:
    """What a described host is made of, and whether words were passed over; None: refused."""
    try:
        found = describe(gpu, gpus=2, intra=links, network=network)
    except InputError:
        return None
    passed = any(note.startswith("passed over") for note in found.assumptions)
    pcie = {n: link.bandwidth for n, link in found.node.links.items() if link.kind == "pcie"}
    return parts_of(found.node) | {"pcie": pcie, "gdr": found.node.gpudirect_rdma}, passed


CARDS = st.sampled_from(("A100-SXM4-80GB", "A100 PCIe 40GB", "V100-SXM2-16GB", "RTX 3090"))


@given(CARDS, paragraphs(), st.data())
def test_a_word_put_into_prose_is_refused_or_named(
    gpu: str, texts: tuple[str, str], data: st.DataObject
) -> None:
    field = data.draw(st.integers(0, 1))
    words = texts[field].split(" ")
    at = data.draw(st.integers(0, len(words)))
    strange = ("banana", "cooled", "TPU", "maybe", "NVLonk", "3.2 GHz", "banana7", "7 ms")
    word = data.draw(st.sampled_from(strange))
    changed = " ".join([*words[:at], word, *words[at:]])
    links, network = (changed, texts[1]) if field == 0 else (texts[0], changed)
    found = described(gpu, links, network)
    assert found is None or found[1]


MAY_CHANGE_IN_PROSE = {
    "nvlink": {"nvlink", "nvswitch", "gpu", "cpu", "nic", "pcie", "p2p"},  # maybe another template
    "pcie": {"pcie", "nvlink", "nvswitch", "gpu", "cpu", "nic"},
    "sockets": {"cpu", "gpu", "nvlink", "nvswitch", "nic", "pcie"},
    "p2p": {"p2p", "gpu", "cpu", "nic", "pcie", "nvlink", "nvswitch"},
    "nic": {"nic", "gdr", "cpu", "pcie", "gpu"},
    "gpudirect": {"gdr"},
}


@pytest.mark.slow
@given(CARDS, paragraphs(), st.data())
def test_a_word_left_out_of_prose_changes_what_it_was_about_or_is_named(
    gpu: str, texts: tuple[str, str], data: st.DataObject
) -> None:
    field = data.draw(st.integers(0, 1))
    words = texts[field].split(" ")
    at = data.draw(st.integers(0, len(words) - 1))
    changed = " ".join([*words[:at], *words[at + 1 :]])
    links, network = (changed, texts[1]) if field == 0 else (texts[0], changed)
    whole, less = described(gpu, *texts), described(gpu, links, network)
    if whole is None or less is None or less[1]:
        return
    about = subject_at(texts[field], len(" ".join(words[:at])) + (at > 0))
    changes = {key for key in whole[0] if whole[0][key] != less[0][key]}
    assert changes <= MAY_CHANGE_IN_PROSE.get(about, set())

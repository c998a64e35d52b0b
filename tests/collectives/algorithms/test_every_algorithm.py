"""What must hold for every algorithm of the catalog."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfmodel.collectives import catalog
from perfmodel.collectives.dependencies import Sends, unroll
from perfmodel.collectives.schedule import Schedule
from perfmodel.collectives.verify import verify
from perfmodel.errors import DataMismatch, InputError, ScheduleError

ALL = [(op, name) for op, makers in catalog.ALGORITHMS.items() for name in makers]
MANY_PIECES: dict[str, dict[str, Any]] = {
    "tree": {"piece_bytes": 24},
    "chain": {"piece_bytes": 24},
    "switch": {"piece_bytes": 24},
    "nvls": {"piece_bytes": 24},
    "nvls_tree": {"piece_bytes": 24},
    "collnet": {"piece_bytes": 24},
    "collnet_direct": {"piece_bytes": 24},
    "gloo_ring": {"segment_bytes": 24},
}


def made(op: str, name: str, ranks: int, elements: int, **own: Any) -> Schedule:
    """A schedule with as many pieces as a large buffer would have."""
    return catalog.make(op, name, ranks, elements * 4, **{**MANY_PIECES.get(name, {}), **own})


@pytest.mark.slow
@pytest.mark.parametrize(("op", "name"), ALL)
def test_data_is_right(op: str, name: str) -> None:
    for ranks in (n for n in range(1, 18) if catalog.allows(op, name, n) is None):
        for elements in {0, 1, 7, ranks, 3 * ranks + 1, 97}:
            verify(made(op, name, ranks, elements), orders=1, seed=ranks + elements)


FEW_SENDS = [
    ("all_reduce", "tree"),
    ("all_reduce", "binomial"),
    ("all_reduce", "recursive_doubling"),
    ("all_reduce", "server"),
    ("all_reduce", "all_pairs"),
    ("all_reduce", "switch"),
    ("broadcast", "binomial"),
    ("reduce", "binomial"),
    ("scatter", "star"),
    ("gather", "star"),
]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [33, 64])
@pytest.mark.parametrize(("op", "name"), ALL)
def test_data_is_right_on_dozens_of_ranks(op: str, name: str, ranks: int) -> None:
    verify(made(op, name, ranks, ranks + 1), orders=1)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [255, 256])
@pytest.mark.parametrize(("op", "name"), FEW_SENDS)
def test_data_is_right_on_hundreds_of_ranks(op: str, name: str, ranks: int) -> None:
    verify(made(op, name, ranks, 13), orders=1)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint8", "int8", "int32"])
@pytest.mark.parametrize(("op", "name"), ALL)
def test_data_is_right_in_every_type_of_element(op: str, name: str, dtype: str) -> None:
    for ranks in (2, 6):
        if not catalog.allows(op, name, ranks):
            verify(made(op, name, ranks, 29), orders=2, dtype=dtype)


@pytest.mark.slow
@given(
    which=st.sampled_from(ALL),
    ranks=st.integers(1, 12),
    elements=st.integers(0, 70),
    itemsize=st.sampled_from([1, 2, 8]),
    root=st.integers(0, 11),
    seed=st.integers(0, 2**32 - 1),
)
def test_data_is_right_for_any_size_and_root(
    which: tuple[str, str], ranks: int, elements: int, itemsize: int, root: int, seed: int
) -> None:
    op, name = which
    assume(catalog.allows(op, name, ranks) is None)
    own = MANY_PIECES.get(name, {})
    at = root % ranks if op in catalog.ROOTED and op != "send" else 0
    schedule = catalog.make(op, name, ranks, elements * itemsize, itemsize=itemsize, root=at, **own)
    verify(schedule, orders=2, seed=seed)
    _assert_views_agree(schedule)


def _assert_views_agree(schedule: Schedule) -> None:
    """Each phase has the edges, repeats and bytes of its rounds; edges work when it says."""
    rounds = iter(schedule.rounds())
    for phase in schedule.phases:
        edges = list(
            zip(phase.channel.tolist(), phase.src.tolist(), phase.dst.tolist(), strict=True)
        )
        assert len(set(edges)) == len(edges) > 0
        assert (phase.active > 0).all()
        assert (phase.first + phase.active).max() == phase.repeat
        assert (phase.src != phase.dst).all()
        moved: dict[tuple[int, int, int], int] = defaultdict(int)
        added = 0
        for repeat in range(phase.repeat):
            part = next(rounds)
            works = {
                edge
                for edge, first, active in zip(
                    edges, phase.first.tolist(), phase.active.tolist(), strict=True
                )
                if first <= repeat < first + active
            }
            keys = list(
                zip(part.channel.tolist(), part.src.tolist(), part.dst.tolist(), strict=True)
            )
            assert set(keys) == works
            added += int(part.nbytes[part.reduce].sum())
            for key, nbytes in zip(keys, part.nbytes.tolist(), strict=True):
                moved[key] += nbytes
        for edge, nbytes in zip(edges, (phase.nbytes * phase.active).tolist(), strict=True):
            assert moved[edge] == pytest.approx(nbytes, rel=1e-12)
        expected = float((phase.nbytes * phase.active * phase.adds).sum())
        assert added == pytest.approx(expected, rel=1e-12)
    assert next(rounds, None) is None


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 12, 16])
@pytest.mark.parametrize(("op", "name"), ALL)
def test_phases_and_rounds_tell_the_same_story(op: str, name: str, ranks: int) -> None:
    for elements in (0, 1, 13, 120, 1000):
        _assert_views_agree(made(op, name, ranks, elements))


def _without(sends: Sends, send: int, dependency: int) -> Sends:
    kept = (sends.waits != send) | (sends.awaited != dependency)
    return dataclasses.replace(sends, waits=sends.waits[kept], awaited=sends.awaited[kept])


def _implied(sends: Sends, send: int, dependency: int) -> bool:
    stack = [d for d in sends.after[send] if d != dependency]
    while stack:
        cluster = stack.pop()
        if cluster == dependency:
            return True
        stack.extend(sends.after[cluster])
    return False


@pytest.mark.parametrize(
    ("op", "name", "ranks", "elements"),
    [
        ("all_reduce", "ring", 4, 16),
        ("all_reduce", "tree", 4, 12),
        ("all_reduce", "halving_doubling", 4, 8),
        ("all_reduce", "rabenseifner", 3, 8),
        ("all_reduce", "hierarchical", 4, 8),
        ("all_reduce", "server", 3, 4),
        ("all_to_all", "bruck", 5, 10),
    ],
)
def test_every_removed_dependency_is_noticed(op: str, name: str, ranks: int, elements: int) -> None:
    """Dropping a dependency that no other implies corrupts data in some legal order."""
    schedule = made(op, name, ranks, elements)
    sends = unroll(schedule)
    essential = [
        (i, d) for i, after in enumerate(sends.after) for d in after if not _implied(sends, i, d)
    ]
    assert len(essential) >= 4
    for send, dependency in essential[:: max(1, len(essential) // 12)]:
        with pytest.raises(
            DataMismatch, match=r"rank \d+, chunk \d+, element \d+: found .* wanted"
        ):
            verify(schedule, orders=600, seed=1, sends=_without(sends, send, dependency))


@pytest.mark.parametrize(("op", "name"), ALL)
def test_a_round_too_few_is_noticed(op: str, name: str) -> None:
    ranks = 2 if op == "send" else 4
    right = made(op, name, ranks, 23)
    rounds = list(right.rounds())
    for missing in range(len(rounds)):
        kept = rounds[:missing] + rounds[missing + 1 :]
        wrong = dataclasses.replace(right, unroll=kept.__iter__)
        with pytest.raises(DataMismatch):
            verify(wrong)


def test_a_chunk_that_nobody_has_is_noticed() -> None:
    right = catalog.make("all_reduce", "server", 3, 40)
    with pytest.raises(ScheduleError, match="chunks of 36 bytes; allowed: the 40 bytes"):
        verify(dataclasses.replace(right, chunk_bytes=right.chunk_bytes - 4))


@pytest.mark.parametrize(("op", "name"), ALL)
def test_docstrings_say_cost_use_and_source(op: str, name: str) -> None:
    text = re.sub(r"\s+", " ", catalog.maker(op, name).__doc__ or "")
    assert "Steps: " in text
    assert re.search(r"Bytes (sent|received)", text)
    assert "Latency term: " in text
    assert "right" in text.lower()
    assert "source" in text.lower()


def test_names_may_be_written_with_dashes_and_the_nearest_is_named() -> None:
    assert catalog.make("all-reduce", "recursive-doubling", 4, 16).algorithm == "recursive_doubling"
    with pytest.raises(InputError, match="did you mean 'halving_doubling'"):
        catalog.make("all_reduce", "halving-doublin", 4, 16)
    with pytest.raises(InputError, match="did you mean 'all_reduce'"):
        catalog.make("allreduce", "ring", 4, 16)
    with pytest.raises(InputError, match="did you mean 'pairwise'"):
        catalog.operations("pairwize")
    assert catalog.operations("bruck") == ("all_gather", "all_to_all")


@pytest.mark.parametrize(("op", "name"), ALL)
def test_impossible_requests_say_what_is_allowed(op: str, name: str) -> None:
    with pytest.raises(ScheduleError, match="allowed"):
        catalog.make(op, name, 0, 16)
    with pytest.raises(ScheduleError, match="whole"):
        catalog.make(op, name, 2, 15)
    with pytest.raises(ScheduleError, match=r"root|rank"):
        catalog.make(op, name, 2, 16, root=2)


def test_a_number_of_ranks_that_an_algorithm_refuses() -> None:
    assert "power of two" in (catalog.allows("all_gather", "recursive_doubling", 6) or "")
    assert catalog.allows("all_gather", "recursive_doubling", 8) is None

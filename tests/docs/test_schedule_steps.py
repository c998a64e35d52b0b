"""What pictures of a schedule show is what its sends do."""

from __future__ import annotations

import re

import numpy as np
import pytest

from docs.extensions.schedule_steps import figures_of, markdown_of, steps_of
from perfmodel.collectives.catalog import maker


@pytest.mark.parametrize("algorithm", ["ring", "binomial", "halving_doubling", "server", "tree"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_last_step_leaves_every_sum_whole(algorithm: str, ranks: int) -> None:
    schedule = maker("all_reduce", algorithm)(ranks, 64 * ranks)
    everybody = frozenset(range(ranks))
    assert {held for row in steps_of(schedule)[-1].after for held in row} == {everybody}


def test_a_ring_is_drawn_as_patarasuk_and_yuan_have_it() -> None:
    """After the first half each rank holds one whole chunk; after k steps a sum is of k + 1."""
    ranks = 4
    steps = steps_of(maker("all_reduce", "ring")(ranks, 64 * ranks))
    assert len(steps) == 2 * (ranks - 1)
    for number, step in enumerate(steps[: ranks - 1], 1):
        assert {len(step.after[send.dst][send.chunk]) for send in step.sends} == {number + 1}
        assert {(send.dst - send.src) % ranks for send in step.sends} == {1}
    whole = np.array([[len(held) == ranks for held in row] for row in steps[ranks - 2].after])
    assert (whole.sum(axis=1) == 1).all()
    assert (whole.sum(axis=0) == 1).all()


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_captions_have_what_a_rank_of_a_ring_sends(ranks: int) -> None:
    schedule = maker("all_reduce", "ring")(ranks, 4 * 64 * ranks)
    last = re.findall(r"a rank has sent ([\d.]+) K", figures_of(schedule, "ring"))[-1]
    assert float(last) == pytest.approx(2 * (ranks - 1) / ranks, rel=1e-2)


@pytest.mark.parametrize(("algorithm", "most"), [("ring", ""), ("binomial", "at most ")])
def test_what_not_all_ranks_send_is_called_a_maximum(algorithm: str, most: str) -> None:
    """Two leaves of four ranks send once up a tree, and nothing down."""
    schedule = maker("all_reduce", algorithm)(4, 1024)
    for text in (markdown_of(schedule), figures_of(schedule, algorithm)):
        assert f"a rank has sent {most}{2 if most else 1.5} K" in text


def test_words_say_what_pictures_show() -> None:
    schedule = maker("all_reduce", "ring")(2, 512)
    steps = steps_of(schedule)
    text = markdown_of(schedule)
    assert len(steps) == 2
    assert "| 2 | 1 | 0+1 | 0+1 |" in text
    (first, *_) = steps[0].sends
    assert f"rank {first.src} sends chunk {first.chunk} to rank {first.dst}, which adds it" in text


def test_each_step_has_a_picture_with_its_arrows() -> None:
    schedule = maker("all_reduce", "ring")(4, 1024)
    figures = figures_of(schedule, "ring").split("<figure>")[1:]
    assert len(figures) == 1 + 6
    assert [figure.count('class="send"') for figure in figures] == [0] + [4] * 6
    assert figures[0].count('class="share share-') == 16
    assert figures[-1].count('class="share share-') == 64

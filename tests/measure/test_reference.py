"""Moves, windows and numbers, executed by NumPy; no torch needed."""

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.collectives import catalog
from perfmodel.collectives.algorithms import ring
from perfmodel.errors import DataMismatch
from perfmodel.measure.reference import (
    MOST_WINDOWS,
    WINDOW_ELEMENTS,
    Move,
    Window,
    compare,
    compute_expected,
    count_elements,
    covers_all_elements,
    describe_sampling,
    execute_moves,
    make_moves,
    make_numbers,
    make_starting_data,
    make_windows,
    window_slices,
)
from perfmodel.measure.worker import find_staged_moves, largest_scratch
from reports.oracle.closed_forms import IN_SWITCH


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("algorithm", sorted(set(catalog.ALGORITHMS["all_reduce"]) - IN_SWITCH))
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rounds_sum_on_numpy(algorithm, ranks, dtype):
    if catalog.allows("all_reduce", algorithm, ranks):
        pytest.skip("the algorithm does not allow this number of ranks")
    schedule = catalog.make(
        "all_reduce", algorithm, ranks, 8 * 37, itemsize=np.dtype(dtype).itemsize
    )
    buffers = make_starting_data(schedule, dtype, Window(0, count_elements(schedule)))
    wanted = np.sum(buffers, axis=0, dtype=dtype)  # wraps around as the libraries do
    execute_moves(make_moves(schedule), buffers)
    for buffer in buffers:
        assert buffer.dtype == wanted.dtype
        assert (buffer == wanted).all()


def test_sends_read_the_state_from_before_the_round():
    swap = [
        [Move(0, 1, slice(0, 1), slice(0, 1), False), Move(1, 0, slice(0, 1), slice(0, 1), False)]
    ]
    buffers = [np.array([1]), np.array([2])]
    execute_moves(swap, buffers)
    assert [b.tolist() for b in buffers] == [[2], [1]]
    # what arrives overwrites what is being sent: it has to be kept aside
    assert [len(find_staged_moves(swap[0], rank)) for rank in range(2)] == [1, 1]
    assert largest_scratch(swap) == 1


@pytest.mark.parametrize(
    ("dtype", "exact"), [("float16", 2**11), ("bfloat16", 2**8), ("float32", 2**24)]
)
def test_numbers_for_floats_add_exactly(dtype, exact):
    data = [make_numbers(dtype, 7, rank, slice(0, 1000)) for rank in range(7)]
    assert np.abs(data).sum(axis=0).max() <= exact
    assert np.abs(data).max() > exact // 8
    assert (data[0] == data[1]).mean() < 0.1
    assert abs(np.mean(data)) < np.abs(data).max() / 10
    assert (make_numbers(dtype, 7, 3, slice(500, 600)) == data[3][500:600]).all()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_use_their_whole_range(dtype):
    found = make_numbers(dtype, 4, 2, slice(0, 10_000))
    info = np.iinfo(dtype)
    assert found.dtype == dtype
    assert found.min() < 0.99 * info.min
    assert found.max() > 0.99 * info.max


def test_numbers_are_those_of_splitmix():
    # first outputs of the published generator for seed 0: state 1, 2, 3 times the golden gamma
    known = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    found = make_numbers("int64", 4, 0, slice(0, 3)).astype(np.uint64)
    assert found.tolist() == known


@pytest.mark.parametrize(
    "case",
    [
        ("all_reduce", "ring", 4, 1003),
        ("all_reduce", "tree", 5, 64),
        ("all_to_all", "bruck", 3, 90),
        ("broadcast", "chain", 4, 7),
        ("reduce_scatter", "ring", 3, 300),
    ],
)
def test_windows_hold_what_whole_buffers_do(case, monkeypatch):
    op, algorithm, ranks, count = case
    schedule = catalog.make(op, algorithm, ranks, 4 * count, itemsize=4)
    schedule = replace(schedule, itemsize=4)
    (all_of_it,) = make_windows(schedule)
    buffers = make_starting_data(schedule, "int32", all_of_it)
    execute_moves(make_moves(schedule), buffers)
    monkeypatch.setattr("perfmodel.measure.reference.WINDOW_ELEMENTS", count)
    monkeypatch.setattr("perfmodel.measure.reference.MOST_WINDOWS", 10_000)
    assert covers_all_elements(schedule)
    seen = np.zeros(count_elements(schedule), dtype=int)
    for window, data in compute_expected(schedule, "int32"):
        assert sum(len(numbers) for numbers in data) <= count + ranks * len(schedule.chunk_bytes)
        part = np.concatenate([np.arange(p.start, p.stop) for p in window_slices(schedule, window)])
        seen[part] += 1
        for whole_buffer, numbers in zip(buffers, data, strict=True):
            assert (whole_buffer[part] == numbers).all()
    assert (seen == 1).all()


def test_large_buffers_are_compared_in_samples_from_end_to_end():
    schedule = ring.all_reduce(4, 1 << 36)
    found = make_windows(schedule)
    assert len(found) == MOST_WINDOWS
    assert found[0].start == 0
    assert found[-1].stop == (1 << 36) // 4 // 4
    assert not covers_all_elements(schedule)
    for window in found:  # however large the buffers
        assert sum(p.stop - p.start for p in window_slices(schedule, window)) * 4 <= WINDOW_ELEMENTS
    assert describe_sampling([ring.all_reduce(4, 64), schedule]) == (
        "From 68719476736 bytes data were compared in 32 samples of each chunk."
    )
    assert describe_sampling([ring.all_reduce(4, 64)]) == ""


def test_a_mismatch_names_rank_chunk_found_and_wanted():
    schedule = ring.all_reduce(4, 64)
    wanted = np.arange(16)
    found = wanted.copy()
    found[9] = 77
    compare(schedule, 2, wanted, wanted)
    with pytest.raises(DataMismatch, match=r"rank 2, chunk 2, element 1: found 77, wanted 9"):
        compare(schedule, 2, found, wanted)
    compare(schedule, 2, found, wanted, chunks=[0, 1, 3])
    window = Window(1, 3)  # elements 1 and 2 of each chunk of four
    taken = np.array([1, 2, 5, 6, 9, 10, 13, 14])
    with pytest.raises(DataMismatch, match=r"rank 2, chunk 2, element 1: found 77, wanted 9"):
        compare(schedule, 2, found[taken], wanted[taken], window=window)

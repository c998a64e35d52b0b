"""A function of the user's as an algorithm: times, data, and what is said of a wrong one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import perfmodel as pm
from tests.theory import ring_all_reduce_s

MACHINE = "dgx-a100"


def ring(ranks: int, nbytes: int, *, steps: int | None = None) -> pm.Schedule:
    rounds = [
        [(r, (r + 1) % ranks, (r - step) % ranks, step < ranks - 1) for r in range(ranks)]
        for step in range(2 * (ranks - 1) if steps is None else steps)
    ]
    return pm.Schedule.from_rounds(ranks, nbytes, rounds)


def along_rows_and_columns(ranks: int, nbytes: int) -> pm.Schedule:
    """All-reduce whole buffers along the rows of a square, then along its columns, by rings."""
    side = round(ranks**0.5)
    if side * side != ranks:
        raise pm.ScheduleError(f"{ranks} ranks; allowed: a square number")
    rounds = []
    for step in (1, side):
        for turn in range(2 * (side - 1)):
            sends = []
            for rank in range(ranks):
                place = rank // step % side
                neighbour = rank + step * ((place + 1) % side - place)
                sends.append((rank, neighbour, (place - turn) % side, turn < side - 1))
            rounds.append(sends)
    return pm.Schedule.from_rounds(ranks, nbytes, rounds)


def swap_in_one_round(ranks: int, nbytes: int) -> pm.Schedule:
    """Everybody sends everything to everybody."""
    sends = [(a, b, 0, True) for a in range(ranks) for b in range(ranks) if a != b]
    return pm.Schedule.from_rounds(ranks, nbytes, [sends])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [ring, along_rows_and_columns, swap_in_one_round])
def test_the_data_is_right(algorithm: Callable[[int, int], pm.Schedule]) -> None:
    rows = pm.verify(algorithm, ranks=range(2, 18))
    squares = [4, 9, 16]
    assert [row.ranks for row in rows] == (
        squares if algorithm is along_rows_and_columns else [*range(2, 18)]
    )
    assert {row.op for row in rows} == {"all_reduce"}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["plain", "nccl", "gloo", "mpi"])
def test_both_fidelities_agree(library: str) -> None:
    machine = pm.topology(MACHINE, nodes=2, fabric="rail-optimised")
    for algorithm in (ring, along_rows_and_columns):
        flow, message = (
            pm.collective(
                machine, algorithm=algorithm, library=library, sizes="1 MiB", fidelity=fidelity
            )[0]
            for fidelity in ("flow", "message")
        )
        assert flow["algorithm"] == ("ring (own)" if algorithm is ring else algorithm.__name__)
        assert flow["time_s"] == pytest.approx(message["time_s"], rel=1e-6)


def test_a_ring_takes_the_time_of_the_textbook() -> None:
    """On links of 240 GB/s that nobody shares, each step takes alpha and the chunk."""
    machine, nbytes = pm.topology(MACHINE), 8 << 20
    small, large = (
        pm.collective(machine, algorithm=ring, library="plain", sizes=size)[0]["time_s"]
        for size in (nbytes, 2 * nbytes)
    )
    beta = (large - small) / nbytes / (14 / 8)
    alpha = (2 * small - large) / 14
    for size in (1 << 10, 1 << 24):
        row = pm.collective(machine, algorithm=ring, library="plain", sizes=size)[0]
        theory = ring_all_reduce_s(8, size, alpha_s=alpha, beta_s_per_B=beta)
        assert row["time_s"] == pytest.approx(theory, rel=1e-9)
    assert 1 / beta == pytest.approx(240e9, rel=1e-9)


def test_its_name_changes_no_number() -> None:
    """NCCL's own numbers of rings and trees are of its kernels, not of whatever is called so."""

    def tree(ranks: int, nbytes: int) -> pm.Schedule:
        return ring(ranks, nbytes)

    def pat(ranks: int, nbytes: int) -> pm.Schedule:
        return ring(ranks, nbytes)

    times = {
        pm.collective(MACHINE, algorithm=each, sizes="1 GiB")[0]["time_s"]
        for each in (ring, tree, pat, partial(ring))
    }
    assert len(times) == 1


def test_the_result_says_how_it_is_laid() -> None:
    times = pm.collective(MACHINE, algorithm=along_rows_and_columns, sizes=1024, gpus_per_node=4)
    assert "along_rows_and_columns sends from rank to rank over the nearest links" in times.notes[0]


def stated_wrongly(field: str, by: Any) -> Callable[[int, int], pm.Schedule]:
    return lambda ranks, nbytes: dataclasses.replace(ring(ranks, nbytes), **{field: by})


def with_other_phases(ranks: int, nbytes: int) -> pm.Schedule:
    schedule = ring(ranks, nbytes)
    phases = tuple(dataclasses.replace(p, nbytes=p.nbytes / 2) for p in schedule.phases)
    return dataclasses.replace(schedule, phases=phases)


WRONG: dict[str, tuple[Any, str]] = {
    "no function": (3, "algorithm: found an int, 3; allowed: .*a function of"),
    "no Schedule": (lambda ranks, nbytes: None, "which returned None; allowed: a function of"),
    "a list": (lambda ranks, nbytes: [1], r"which returned a list, \[1\]; allowed: a function of"),
    "one argument": (lambda ranks: None, r"own\(ranks\), which cannot take \(ranks, nbytes\)"),
    "three arguments": (lambda a, b, c: None, "which cannot take"),
    "an error of its own": (lambda ranks, nbytes: 1 / 0, "which raised ZeroDivisionError"),
    "other ranks": (lambda ranks, nbytes: ring(ranks + 1, nbytes), r"ranks: found \d+; allowed"),
    "other bytes": (lambda ranks, nbytes: ring(ranks, nbytes + 4), r"nbytes: found \d+; allowed"),
    "chunks of other bytes": (stated_wrongly("chunk_bytes", np.array([4])), "chunk_bytes: found 4"),
    "other phases": (with_other_phases, r"phases: found \d+ bytes from rank 0 to 1; allowed"),
    "wrong data": (partial(ring, steps=9), r"rank \d, chunk \d, element 0: found .*, wanted"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_says_what_was_expected_and_what_came(name: str) -> None:
    algorithm, text = WRONG[name]
    with pytest.raises(pm.PerfmodelError, match=text):
        pm.verify(algorithm, ranks=[8])
    with pytest.raises(pm.PerfmodelError, match=text):
        pm.collective(MACHINE, algorithm=algorithm, sizes="1 KiB", library="plain")


def test_another_operation_is_a_fault() -> None:
    with pytest.raises(pm.PerfmodelError, match=r"collective: found 'all_reduce'; allowed: 'redu"):
        pm.collective(MACHINE, op="reduce", algorithm=ring, sizes=1024)


def test_numbers_of_ranks_that_it_refuses_are_left_out() -> None:
    with pytest.raises(pm.PerfmodelError, match="ranks: found 2 to 3; allowed: numbers that along"):
        pm.verify(along_rows_and_columns, ranks=range(2, 4))
    with pytest.raises(pm.ScheduleError, match="8 ranks; allowed: a square number"):
        pm.collective(MACHINE, algorithm=along_rows_and_columns, sizes=1024)


def test_a_single_schedule_and_a_name_can_be_verified() -> None:
    assert pm.verify(ring(4, 64)).sends == 24
    assert {row.op for row in pm.verify("ring", ranks=[3])} >= {"all_reduce", "all_gather"}
    with pytest.raises(pm.PerfmodelError, match="did you mean 'ring'"):
        pm.verify("rnig")
    with pytest.raises(pm.PerfmodelError, match="ranks: found"):
        pm.verify(ring, ranks=["two"])

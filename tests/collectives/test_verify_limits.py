"""What verify refuses: hours of work, and types that cannot tell a right sum from a wrong one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfmodel.collectives import verify_table as table
from perfmodel.collectives.algorithms.ring import all_reduce
from perfmodel.collectives.catalog import ALGORITHMS, allows, make
from perfmodel.collectives.dependencies import messages, messages_in, sends_in, unroll
from perfmodel.collectives.verify import exact_up_to, verify
from perfmodel.collectives.verify_table import verify_table
from perfmodel.errors import InputError, ScheduleError

PAIRS = [(op, name) for op, makers in ALGORITHMS.items() for name in makers]


@pytest.mark.parametrize(("op", "name"), PAIRS)
@pytest.mark.parametrize("ranks", [2, 6, 8])
def test_counts_are_those_of_the_unrolled_schedule(op: str, name: str, ranks: int) -> None:
    if allows(op, name, ranks) is not None:
        pytest.skip("no such schedule")
    schedule = make(op, name, ranks, 4 * 24 * 64)
    sends = unroll(schedule)
    assert sends_in(schedule) == len(sends)
    assert messages_in(schedule) == len(messages(sends))


def test_a_table_of_hours_is_refused_at_once() -> None:
    """N^2 sends for each of 511 numbers of ranks, five sizes and three orders."""
    with pytest.raises(InputError, match=r"ranks: found 2 to 512.*5,000,000 sends") as error:
        verify_table("direct", range(2, 513))
    reached = int(str(error.value).split(" reaches that at ")[1].split()[0])
    # Sum of N (N - 1) over 2 ... R is (R - 1) R (R + 1) / 3.
    by_hand = next(r for r in range(600) if 5 * (r - 1) * r * (r + 1) > 5_000_000)
    assert abs(reached - by_hand) <= 1


def test_fewer_orders_allow_more_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_SENDS", 2 * 8 * 7 * 5)
    assert verify_table("ring", [8], orders=1, elements=[8])
    with pytest.raises(InputError, match="ring reaches that at 8 ranks with 3 orders of 5 sizes"):
        verify_table("ring", [8])


def test_a_type_too_narrow_for_its_ranks_is_refused() -> None:
    """float16 holds whole numbers up to 2048: 2049 ranks could send zeros only."""
    assert verify(all_reduce(4, 16), dtype=np.float16)
    with pytest.raises(ScheduleError, match=r"2049 ranks with float16.* at most 2,048 ranks"):
        verify(all_reduce(2049, 4 * 2049), dtype=np.float16)


def test_a_type_that_is_no_number_is_refused() -> None:
    with pytest.raises(ScheduleError, match="complex64; allowed: integers and floats"):
        verify(all_reduce(4, 16), dtype=np.complex64)


def test_bfloat16_is_exact_up_to_256() -> None:
    """NumPy has no bfloat16 of its own; 257 needs nine bits, and a bfloat16 has eight."""
    bfloat16: Any = SimpleNamespace(name="bfloat16", kind="V")
    assert exact_up_to(bfloat16) == 256
    assert [exact_up_to(np.dtype(name)) for name in ("float16", "float32")] == [2**11, 2**24]

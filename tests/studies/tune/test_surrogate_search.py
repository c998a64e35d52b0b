"""Two dtypes share a list of caps: against every way of filling their buckets that a list has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.scenario import Scenario
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.studies.tune.caps import assign_buckets, with_caps
from perfmodel.studies.tune.run import tune_scenario

Made = Callable[..., Scenario]
ITEM = {"fp32": 4, "fp16": 2, "fp64": 8}


def all_lists(queues: Sequence[tuple[int, ...]]) -> Iterator[tuple[float, ...]]:
    """Lists that make all buckets there are, from the sizes of each dtype as they get ready.

    The next cap decides on the next bucket of each dtype: it closes with the first tensor that
    brings it to the cap. So caps that are sums from where a bucket begins are all that matter.
    """
    if not any(queues):
        yield ()
        return
    sums = {sum(queue[: at + 1]) for queue in queues for at in range(len(queue))}
    for cap in sums:
        for rest in all_lists([_after(queue, cap) for queue in queues]):
            yield (float(cap), *rest)


def _after(queue: tuple[int, ...], cap: int) -> tuple[int, ...]:
    filled = 0
    for at, nbytes in enumerate(queue):
        filled += nbytes
        if filled >= cap:
            return queue[at + 1 :]
    return ()


def least_s(scenario: Scenario, elements: Sequence[int], dtypes: Sequence[str]) -> float:
    """Step of the best list; each set of buckets simulated once."""
    prepared = prepare(scenario)
    queues = [
        tuple(
            ITEM[kind] * n
            for n, kind in zip(elements[::-1], dtypes[::-1], strict=True)
            if kind == mine
        )
        for mine in sorted(set(dtypes))
    ]
    seen = {}
    for caps in all_lists(queues):
        options = with_caps(prepared.job.options, caps)
        groups = assign_buckets(prepared.job.workload, options)
        if groups not in seen:
            seen[groups] = prepared.step(options).step_time_s
    return min(seen.values())


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.integers(1_000, 3_000_000), min_size=2, max_size=6), st.data())
def test_no_list_is_better_by_a_percent(
    made: Made, elements: list[int], data: st.DataObject
) -> None:
    count = len(elements)
    times = data.draw(st.lists(st.floats(0.01, 20), min_size=count, max_size=count))
    kinds = st.sampled_from(["fp32", "fp16"])
    dtypes = data.draw(st.lists(kinds, min_size=count, max_size=count))
    scenario = made(elements, times, dtypes=dtypes)
    found = tune_scenario(scenario)
    assert found.best_list.step_time_s <= 1.01 * least_s(scenario, elements, dtypes)


@pytest.mark.parametrize("slow", [0, 1])
def test_large_tensors_of_both_dtypes(made: Made, slow: int) -> None:
    elements, dtypes = [900_000, 1_800_000] * 3, ["fp32", "fp16"] * 3
    times = [4.0, 9.0] * 3 if slow else [30.0, 1.0] * 3
    scenario = made(elements, times, dtypes=dtypes)
    found = tune_scenario(scenario)
    assert found.best_list.step_time_s <= 1.01 * least_s(scenario, elements, dtypes)


def test_every_pair_of_partitions_is_counted_once_by_hand() -> None:
    """One tensor of 8 and two of 4 bytes: both of 4 together or apart, the other is alone."""
    ends = {tuple(caps) for caps in all_lists([(8,), (4, 4)])}
    assert ends == {(8.0,), (4.0, 4.0)}

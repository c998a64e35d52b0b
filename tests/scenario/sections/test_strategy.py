"""Section ``strategy``."""

from perfmodel.scenario import (
    DataParallelStrategy,
    load_scenario,
)


def test_strategies_are_told_apart_by_kind(good, scenario_file):
    path = scenario_file(
        good.replace("  kind: ddp\n  bucket_cap: 25 MiB\n", "  kind: data_parallel\n")
        .replace("nodes: 4", "nodes: 1")
        .replace("8, 16, 32]", "8]")
    )
    assert isinstance(load_scenario(path).strategy, DataParallelStrategy)

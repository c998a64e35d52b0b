"""Open MPI's choice by size and ranks, and its times against measured ones.

Golden choices: Open MPI 5.0 ``coll_tuned_decision_fixed.c``, read by hand at single points. Golden
times: own measurement with Open MPI 4.1.4 MPI_Allreduce, two ranks on emulated links.
"""

import pytest
from pydantic import ValidationError

from perfmodel.collectives.catalog import ALGORITHMS, allows
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import make_machine
from perfmodel.library.model import Decision, decide_algorithm, load_library, own_algorithm
from perfmodel.studies.run.collective import collective_rows

MPI = load_library("mpi")


@pytest.mark.parametrize(
    ("op", "ranks", "nbytes", "algorithm"),
    [
        ("all_reduce", 2, 1024, "recursive_doubling"),
        ("all_reduce", 2, 65536, "ring"),
        ("all_reduce", 2, 1 << 20, "rabenseifner"),
        ("all_reduce", 4, 8191, "recursive_doubling"),
        ("all_reduce", 4, 8192, "rabenseifner"),
        ("all_reduce", 64, 262143, "recursive_doubling"),
        ("all_reduce", 64, 262144, "rabenseifner"),
        ("all_reduce", 200, 1000, "binomial"),
        ("all_reduce", 5000, 20000, "recursive_doubling"),
        ("all_gather", 2, 1 << 20, "ring"),
        ("all_gather", 16, 1 << 30, "recursive_doubling"),
        ("all_gather", 12, 1 << 20, "bruck"),
        ("all_gather", 40, 40 * 1023, "bruck"),
        ("all_gather", 64, 64 * 511, "recursive_doubling"),
        ("all_gather", 64, 64 * 512, "ring"),
        ("all_to_all", 4, 4 * 524288, "pairwise"),
        ("all_to_all", 4, 4 * 1048576, "direct"),
        ("all_to_all", 16, 16 * 4, "bruck"),
        ("all_to_all", 64, 64 * 262144, "pairwise"),
        ("reduce_scatter", 8, 262143, "recursive_halving"),
        ("reduce_scatter", 8, 262144, "ring"),
        ("reduce_scatter", 64, 1 << 30, "recursive_halving"),
        ("broadcast", 4, 1 << 20, "chain"),
        ("broadcast", 16, 1 << 20, "chain"),
        ("broadcast", 32, 1 << 20, "binomial"),
        ("reduce", 4, 4096, "chain"),
        ("reduce", 8, 4096, "binomial"),
    ],
)
def test_choice_at_single_points(op, ranks, nbytes, algorithm):
    assert own_algorithm(MPI, op, nbytes, ranks) == algorithm


def test_every_choice_is_an_algorithm_of_the_catalog():
    for op, decision in MPI.decisions.items():
        names = {name for rule in decision.rules for name in rule.algorithms}
        assert names | set(decision.odd.values()) <= set(ALGORITHMS[op])
        for ranks in (2, 3, 4, 6, 7, 8, 12, 16, 33):
            for power in range(0, 28, 3):
                assert allows(op, own_algorithm(MPI, op, 2**power, ranks), ranks) is None


def test_other_operations_and_libraries_have_their_own():
    assert own_algorithm(MPI, "scatter", 1024, 4) is None
    assert own_algorithm(load_library("gloo"), "all_reduce", 1024, 4) == "gloo_ring"
    assert own_algorithm(load_library("nccl"), "all_reduce", 1024, 4) is None


@pytest.mark.parametrize(
    "rules",
    [
        [{"below": 4, "algorithms": ["ring"]}],
        [{"algorithms": ["ring"]}, {"algorithms": ["ring"]}],
        [
            {"below": 8, "algorithms": ["ring"]},
            {"below": 4, "algorithms": ["ring"]},
            {"algorithms": ["ring"]},
        ],
        [{"sizes": [8], "algorithms": ["ring"]}],
        [{"sizes": [8, 4], "algorithms": ["ring", "ring", "ring"]}],
        [],
    ],
)
def test_malformed_rules(rules):
    with pytest.raises(ValidationError):
        Decision.model_validate({"counts": "whole", "rules": rules})


def test_bounds_belong_to_the_next_rule():
    decision = Decision.model_validate(
        {
            "counts": "part",
            "rules": [
                {"below": 4, "sizes": [10], "algorithms": ["a", "b"]},
                {"algorithms": ["c"]},
            ],
        }
    )
    assert [decide_algorithm(decision, 3 * size, 3) for size in (9, 10, 11)] == ["a", "b", "b"]
    assert decide_algorithm(decision, 1, 4) == "c"


MEASURED = [  # payload Mbit/s, delay us, bytes, us
    (496.34, 1000.0, 1024, 1055.7),
    (992.68, 1000.0, 1024, 1054.8),
    (496.34, 0.0, 1048576, 16772.6),
    (496.34, 0.0, 16777216, 272474.3),
    (992.68, 0.0, 4194304, 33900.7),
    (496.34, 1000.0, 1048576, 23008.2),
    (496.34, 1000.0, 4194304, 74050.9),
    (992.68, 1000.0, 1048576, 14437.1),
    (992.68, 1000.0, 16777216, 143930.7),
]


@pytest.mark.parametrize(("rate_mbit", "delay_us", "nbytes", "time_us"), MEASURED)
def test_two_ranks_as_measured(rate_mbit, delay_us, nbytes, time_us, switched_topology):
    rate_Bps = rate_mbit * 1e6 / 8
    topology = switched_topology([rate_Bps] * 2, [delay_us * 1e-6] * 2, down_Bps=rate_Bps)
    (row,) = collective_rows(topology, sizes=[nbytes], library="mpi")
    assert row["time_s"] * 1e6 == pytest.approx(time_us, rel=0.04)


def test_long_messages_ask_first(switched_topology):
    """Above 64 KiB a send waits for request, answer and data: three latencies."""
    topology = switched_topology([1e15] * 2, [1e-3] * 2)
    machine = make_machine(topology, MPI)
    for nbytes, protocol in ((1024, "eager"), (1 << 20, "rendezvous")):
        (lowered,) = lower_collective(machine, "all_reduce", nbytes, range(2))
        assert lowered.protocol == protocol
        assert lowered.stages[0].latency_s[0] == pytest.approx(
            (1e-3 if protocol == "eager" else 3e-3) + 11e-6
        )


def test_one_ring():
    """Where NCCL lays six, MPI has one."""
    from perfmodel.topology.templates.build import build_topology

    machine = make_machine(build_topology("dgx1-v100"), MPI)
    assert machine.rings(range(8)).orders.shape == (1, 8)

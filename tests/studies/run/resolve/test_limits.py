"""What is refused because it would take too long or too much memory."""

import pytest

from perfmodel.errors import InputError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.scenario import ClusterSize, load_scenario
from perfmodel.studies.run.resolve.machine import (
    MESSAGE_SENDS,
    check_cluster_size,
    check_message_size,
    check_sharing_jobs,
    most_sharing_gpus,
)
from perfmodel.topology.templates.build import build_topology


def test_clusters_have_a_largest_size():
    check_cluster_size(200_000, "cluster.nodes")
    with pytest.raises(InputError, match=r"cluster\.nodes: found 200,001 GPUs"):
        check_cluster_size(200_001, "cluster.nodes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "algorithm", "each"),
    [
        ("all_reduce", None, 2 * 8 * 7 * 6),  # six rings
        ("all_reduce", "gloo_ring", 2 * 8 * 7 * 2),  # two segments a rank
        ("all_reduce", "halving_doubling", 2 * 3 * 8),
        ("all_reduce", "server", 2 * 7),
        ("broadcast", "binomial", 7),
    ],
)
def test_sends_are_counted_as_the_algorithm_makes_them(op, algorithm, each):
    """Steps times senders of the published algorithms, on a machine of eight."""
    dgx1 = Machine(build_topology("dgx1-v100"), load_library("nccl"))
    most = MESSAGE_SENDS // each
    check_message_size(dgx1, [(op, 1 << 20)] * most, algorithm=algorithm)
    with pytest.raises(InputError, match=f"{each * (most + 1):,} sends in {most + 1} of"):
        check_message_size(dgx1, [(op, 1 << 20)] * (most + 1), algorithm=algorithm)


@pytest.mark.slow
def test_messages_between_stages_are_one_send_of_each_pair():
    """Those of 100,000 pairs, or around 50,000 groups of four."""
    dgx1 = Machine(build_topology("dgx1-v100"), load_library("nccl"))
    for message, each in (
        ("send", ((0, 4), (1, 5)) * 50_000),
        ("send_recv", ((0, 1, 2, 3),) * 50_000),
    ):
        sends = 100_000 if message == "send" else 200_000
        most = MESSAGE_SENDS // sends
        check_message_size(dgx1, [(message, 1 << 20, each)] * most)
        with pytest.raises(InputError, match=f"{MESSAGE_SENDS + sends:,} sends"):
            check_message_size(dgx1, [(message, 1 << 20, each)] * (most + 1))


def test_pieces_count_too():
    """A chain of 8 ranks sends every piece of a long buffer 7 times on each ring."""
    dgx1 = Machine(build_topology("dgx1-v100"), load_library("nccl"))
    with pytest.raises(InputError, match="sends in 1 of 1 collectives"):
        check_message_size(dgx1, [("broadcast", 512 << 30)])


def test_messages_on_sockets_are_limited_by_their_time():
    """Of the sends of a ring: 2 (N - 1) N of two segments, whichever takes longer to simulate."""
    machine = Machine(
        build_topology("shaped-ethernet", hosts=100, fabric="one-switch"), load_library("gloo")
    )
    small, large = [("all_reduce", 4 << 20)], [("all_reduce", 400 << 20)]
    check_message_size(machine, small * 29, sockets=True, by_cores=True)
    with pytest.raises(InputError, match=r"100 ranks that share cores .* 60 s; fewer ranks"):
        check_message_size(machine, small * 30, sockets=True, by_cores=True)
    with pytest.raises(InputError, match=r"in 5 of 29 collectives, \d+ s of CPU time"):
        check_message_size(machine, small * 29, sockets=True, by_cores=True, simulations=6)
    check_message_size(machine, large * 5, sockets=True, by_cores=True)
    with pytest.raises(InputError, match="in 6 of 30 collectives"):
        check_message_size(machine, large * 30, sockets=True, by_cores=True)


def test_jobs_that_share_a_network_have_a_largest_size():
    """The job that is to blame is named; without other jobs nothing is refused."""
    scenario = load_scenario("two-jobs")
    (job,) = scenario.jobs
    most = most_sharing_gpus(2) // 8
    fits = scenario.model_copy(update={"jobs": (job.model_copy(update={"nodes": most - 2}),)})
    check_sharing_jobs(fits, ClusterSize(16, 2, 8))
    with pytest.raises(InputError, match=r"jobs\.0\.nodes: found 510 nodes, of 4,104 GPUs in 2"):
        check_sharing_jobs(fits, ClusterSize(24, 3, 8))
    with pytest.raises(InputError, match=r"cluster\.nodes: found 600 nodes"):
        check_sharing_jobs(fits, ClusterSize(4800, 600, 8))
    three = fits.model_copy(update={"jobs": (*fits.jobs, job.model_copy(update={"nodes": 1}))})
    with pytest.raises(InputError, match=r"4,088 GPUs in 3 jobs; allowed: at most 2,133 GPUs"):
        check_sharing_jobs(three, ClusterSize(0, 0, 8))
    check_sharing_jobs(scenario.model_copy(update={"jobs": ()}), ClusterSize(2400, 300, 8))
    assert most_sharing_gpus(10) >= 640  # ten jobs of 64

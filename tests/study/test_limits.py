"""What is refused because it would take too long or too much memory."""

import pytest

from perfmodel.errors import InputError
from perfmodel.library.carry import Machine
from perfmodel.library.model import load_library
from perfmodel.study.limits import check_cluster_size, check_message_size
from perfmodel.topology.build import build


def test_message_sends_count_every_ring():
    dgx1 = Machine(build("dgx1-v100"), load_library("nccl"))
    check_message_size(dgx1, 744)  # 2 * 8 * 7 sends on each of 6 rings
    with pytest.raises(InputError, match=r"8 ranks, 6 rings and 745 collectives \(500,640 sends\)"):
        check_message_size(dgx1, 745)


def test_clusters_have_a_largest_size():
    check_cluster_size(200_000, "cluster.nodes")
    with pytest.raises(InputError, match=r"cluster\.nodes: found 200,001 GPUs"):
        check_cluster_size(200_001, "cluster.nodes")

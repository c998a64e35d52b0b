"""Chunk sizes worked out by hand from NCCL's rules, NVIDIA/nccl 2.30.7 ``src/enqueue.cc``."""

import pytest

from perfmodel.library.nccl.trees import (
    collnet_bytes,
    nvls_bytes,
    tree_bytes,
)

MIB = 1 << 20
AT_ONCE = 16 * 8
"""Channels times heads: nChannels * nvls.nHeads of two or more DGX H100."""


@pytest.mark.parametrize(
    ("nodes", "nbytes", "chunk"),
    [
        # Two nodes begin at 128 KiB; below 4 x 128 x 128 KiB = 64 MiB they take half of it,
        # below 1 x 128 x 64 KiB = 8 MiB half of that.
        (2, 1 << 34, 131072),
        (2, 64 * MIB, 131072),
        (2, 64 * MIB - 1, 65536),
        (3, 64 * MIB, 131072),
        (2, 8 * MIB, 65536),
        (2, 8 * MIB - 1, 32768),
        (2, 1, 32768),
        # Four nodes and more begin at 64 KiB (NCCL_NVLSTREE_MAX_CHUNKSIZE).
        (4, 1 << 34, 65536),
        (64, 1 << 34, 65536),
        (4, 8 * MIB, 65536),
        (4, 8 * MIB - 1, 32768),
    ],
)
def test_nvls_tree(nodes, nbytes, chunk):
    assert nvls_bytes(nbytes, AT_ONCE, nodes) == chunk


@pytest.mark.parametrize(
    ("nbytes", "chunk"),
    [
        # 64 x 128 x 128 KiB = 1 GiB, 8 x 128 x 64 KiB = 64 MiB, 2 x 128 x 32 KiB = 8 MiB.
        (1024 * MIB, 131072),
        (1024 * MIB - 1, 65536),
        (64 * MIB, 65536),
        (64 * MIB - 1, 32768),
        (8 * MIB, 32768),
        (8 * MIB - 1, 16384),
        (1, 16384),
    ],
)
def test_nvls(nbytes, chunk):
    assert nvls_bytes(nbytes, AT_ONCE) == chunk


@pytest.mark.parametrize(
    ("nbytes", "chunk"),
    [
        # 16 channels, depth 9: 9 x 64 chunks of 256 KiB a channel are 2304 MiB, 9 x 8 of 128 KiB
        # 144 MiB, 9 of 64 KiB 9 MiB.
        (2304 * MIB, 262144),
        (2304 * MIB - 1, 131072),
        (144 * MIB, 131072),
        (144 * MIB - 1, 65536),
        (9 * MIB, 65536),
        (9 * MIB - 1, 32768),
        (1, 32768),
    ],
)
def test_collnet_chain(nbytes, chunk):
    assert collnet_bytes(nbytes, 16, 9) == chunk


@pytest.mark.parametrize(
    ("protocol", "nbytes", "chunk"),
    [
        # 16 channels. LL: warps have 256 bytes, blocks 4 KiB, in between a share is in 8 parts;
        # so has LL128, 1920 and 38400 bytes. Simple: whole steps of 4 MiB / 8.
        ("ll", 1, 256),
        ("ll", 16 * 8 * 1024, 1024),
        ("ll", 1 << 34, 4096),
        ("ll128", 1, 1920),
        ("ll128", 16 * 8 * 8192, 8192),
        ("ll128", 1 << 34, 38400),
        ("simple", 1, 524288),
        ("simple", 1 << 34, 524288),
    ],
)
def test_tree(protocol, nbytes, chunk):
    assert tree_bytes(protocol, nbytes, channels=16, nodes=2, per_node=8) == chunk


def test_a_step_of_simple_is_an_eighth_of_the_buffer():
    """NCCL_BUFFSIZE over NCCL_STEPS; NVIDIA/nccl src/init.cc and src/include/device.h."""
    assert tree_bytes("simple", 1 << 30, 16, 2, 8, buffer_bytes=8 << 20) == 1 << 20
    assert tree_bytes("ll", 1 << 34, 16, 2, 8, buffer_bytes=8 << 20) == 4096

"""Collectives of the join context: ranks that run out of inputs shadow those of the others.

The order is that of torch 2.13: ``Join`` in torch/distributed/algorithms/join.py, ``_pre_forward``
and ``_DDPJoinHook`` in torch/nn/parallel/distributed.py. Each rank that still has inputs notifies
the others before forward, agrees with them on whose buffers count, and says whether this backward
synchronises. A rank that has none waits for each of these, then reduces zeros bucket by bucket.
"""

from __future__ import annotations

from perfmodel.training.ddp.hooks.bucket_reduction import GROUP
from perfmodel.training.plan.forward_backward import Step

FLAG_BYTES = 4
"""One fp32: a count of ranks, or a yes (``torch.ones(1)``)."""
RANK_BYTES = 8
"""One int64: a rank (``_find_common_rank``)."""

JOINED = "joined"
"""Class of the ranks that have run out of inputs."""


def add_notice(step: Step, micro_batch: int) -> tuple[int, ...]:
    """Say that this rank has inputs; returns what the next collective waits for.

    With ``throw_on_early_termination`` the host also reads whether any rank has none.
    """
    if not step.options.join:
        return ()
    sent = _flag(step, f"join notice {micro_batch}", micro_batch)
    waits_for_count = step.rank_class == JOINED
    if step.options.throw_on_early_termination:
        sent = _flag(step, f"join exception {micro_batch}", micro_batch, after=(sent,))
        waits_for_count = True
    if not waits_for_count:
        return ()
    return (
        step.tasks.wait("wait for join", step.rank_class, after=(sent,), micro_batch=micro_batch),
    )


def add_authority(step: Step, after: tuple[int, ...]) -> tuple[int, ...]:
    """Agree on the rank whose buffers count; the host reads which."""
    if not step.options.join:
        return after
    sent = step.tasks.collective(
        "all-reduce of authoritative rank",
        "all_reduce",
        RANK_BYTES,
        step.rank_class,
        communicator=GROUP,
        key="authoritative rank",
        after=after,
        dtype="int64",
    )
    return (step.tasks.wait("wait for authoritative rank", step.rank_class, after=(sent,)),)


def add_sync_question(step: Step, micro_batch: int, after: tuple[int, ...]) -> tuple[int, ...]:
    """Say whether this backward synchronises; only ranks without inputs wait for the answer."""
    if not step.options.join:
        return ()
    sent = _flag(step, f"join synchronises {micro_batch}", micro_batch, after=after)
    if step.rank_class != JOINED:
        return ()
    wait = step.tasks.wait(
        "wait for the kind of backward", step.rank_class, after=(sent,), micro_batch=micro_batch
    )
    return (wait,)


def _flag(step: Step, key: str, micro_batch: int, *, after: tuple[int, ...] = ()) -> int:
    return step.tasks.collective(
        f"all-reduce of {key}",
        "all_reduce",
        FLAG_BYTES,
        step.rank_class,
        communicator=GROUP,
        key=key,
        after=after,
        dtype="fp32",
        micro_batch=micro_batch,
    )

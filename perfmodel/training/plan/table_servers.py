"""Embedding tables on other hosts beside data parallelism: rows of a batch are asked for by RPC.

Written after PyTorch's tutorial "Combining Distributed DataParallel with Distributed RPC Framework"
(a ``RemoteModule`` of ``EmbeddingBag`` on the CPU of a parameter server) and torch 2.13's
``torch/distributed/nn/api/remote_module.py``, ``torch/csrc/distributed/autograd`` and
``torch/distributed/optim/optimizer.py``:

- Forward sends the indices and offsets of its batch to each server, and its host waits until the
  rows have arrived and are copied up.
- Backward copies the gradients of rows down, for which the host waits, and sends them while the
  layers before run; ``dist_autograd.backward`` ends when servers have answered.
- ``DistributedOptimizer.step`` has servers update the rows of their sparse gradients by SGD: here
  with what they do of each gradient, in two calls.

Each server serves the ranks, which share its NIC, once all have asked. It is put at the first GPU
of its host, whose nearest NIC it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfmodel.training.frameworks import fixed_in
from perfmodel.training.plan.builder import COMPUTE, HOST, TaskList
from perfmodel.training.plan.step_plan import Communicator, Stream
from perfmodel.training.server_rates import cpu_rate_Bps, rpc_s
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import ITEM_BYTES

RPC = Stream("rpc", "comm")


def server_communicators(request: StepRequest) -> tuple[Communicator, ...]:
    """Join each server, first in its group, with those that ask it; none without remote tables.

    Servers on hosts of their own are numbered after the ranks.
    """
    shard, ranks = request.workload.shard, range(request.ranks)
    if shard.tables != "remote":
        return ()
    servers = (
        ranks[:: request.ranks_per_host][: shard.servers]
        if shard.colocated
        else range(request.ranks, request.ranks + shard.servers)
    )
    groups = tuple((at, *(rank for rank in ranks if rank != at)) for at in servers)
    return (Communicator("servers of tables", groups, "servers"),)


def call_servers(
    tasks: TaskList,
    request: StepRequest,
    rank_class: str,
    layers: Sequence[int],
    micro_batch: int,
    backward: int | None = None,
) -> tuple[int, ...]:
    """Ask for the rows of some layers, or send their gradients; nothing without remote rows.

    `backward`: the task that makes gradients; None: in forward.
    Returns the task that has brought rows, or that ends what servers do.
    """
    tables, row_bytes = max(request.workload.layers[layer].remote_rows for layer in layers)
    if not tables:
        return ()
    (servers,) = server_communicators(request)
    members, count = servers.groups[0], len(servers.groups)
    rows = -(-tables // count) * request.batch_per_gpu  # of whole tables, dealt out
    nbytes = rows * row_bytes

    def send(name: str, each_bytes: int, *after: int) -> int:
        # home, too: NCCL's way out would be over other NICs, and links carry as much both ways
        return tasks.collective(
            name,
            "gather",
            len(members) * each_bytes,
            rank_class,
            communicator=servers.name,
            key=f"{name} {micro_batch}",
            after=after,
            stream=RPC.name,
            root=members[0],
            micro_batch=micro_batch,
        )

    def work(name: str, kind: str, duration_s: float, after: int, stream: Stream) -> int:
        return tasks.compute(
            name,
            kind,
            duration_s,
            rank_class,
            after=(after,),
            stream=stream.name,
            micro_batch=micro_batch,
        )

    copied_s = count * nbytes / (request.host_link_Bps or math.inf)
    pass_s = request.ranks * nbytes / cpu_rate_Bps(fixed_in("torch", "rpc_threads"))
    found_s, updated_s = (rpc_s() + passes_of(each) * pass_s for each in ("activation", "addition"))
    if backward is None:
        issued = latest(tasks, HOST if tasks.launch_s > 0 else COMPUTE)
        # of each row its index, and where its bag begins
        asked = send("indices of rows", 2 * ITEM_BYTES["int64"] * rows, *issued)
        found = work("look-up at servers", "communication", found_s, asked, RPC)
        return (work("copy rows up", "copy", copied_s, send("rows", nbytes, found), COMPUTE),)
    down = work("copy gradients of rows down", "copy", copied_s, backward, COMPUTE)
    tasks.wait("wait for gradients of rows", rank_class, after=(down,), micro_batch=micro_batch)
    return (
        work(
            "gradients at servers",
            "communication",
            found_s + updated_s,
            send("gradients of rows", nbytes, down),
            RPC,
        ),
    )


def latest(tasks: TaskList, stream: Stream) -> tuple[int, ...]:
    """Return the last task of a stream, if there is one."""
    return tuple(at for at, task in enumerate(tasks.tasks) if task.stream == stream.name)[-1:]

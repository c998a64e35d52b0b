"""The GPU that does more than the others of a step: device 0 of nn.DataParallel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.studies.run.result.memory import Memory
from perfmodel.studies.run.result.server_use import HotSpot
from perfmodel.studies.run.steps.sized_job import ReportedRun, SizedJob
from perfmodel.timeline import Span
from perfmodel.topology.model import Topology


def find_hot_spot(
    sized: SizedJob,
    reported: ReportedRun,
    spans: Sequence[Span],
    topology: Topology,
    memory: Memory,
) -> HotSpot | None:
    """Find the single GPU whose plan differs from that of all others; None where all are alike.

    `spans`: of one step.
    """
    classes = sized.plan_for(None).classes
    alone = [each for each in classes if len(each.ranks) == 1]
    if len(classes) < 2 or len(alone) != 1:
        return None
    (hot,) = alone
    streams = {stream.name for stream in reported.plan.streams if stream.kind == "compute"}
    busy_s: dict[str, float] = {each.name: 0.0 for each in reported.plan.classes}
    for span in spans:
        if span.stream in streams:
            busy_s[span.rank_class] += span.end_s - span.start_s
    gpu = topology.ranks[hot.ranks[0]]
    others = [topology.ranks[rank] for each in classes if each is not hot for rank in each.ranks]
    nbytes = reported.run.counted.payload_bytes / reported.steps
    return HotSpot(
        gpu=gpu,
        busy_s=busy_s[hot.name],
        others_busy_s=max(time for name, time in busy_s.items() if name != hot.name),
        link_bytes=_at(topology, nbytes, gpu),
        others_link_bytes=float(np.mean([_at(topology, nbytes, other) for other in others])),
        only_there_bytes=memory.optimizer_bytes + memory.buckets_bytes,
    )


def _at(topology: Topology, nbytes: FloatArray, gpu: str) -> float:
    """Bytes over the links of a GPU in both directions."""
    return float(sum(nbytes[at] for at, ends in enumerate(topology.arcs.names) if gpu in ends))

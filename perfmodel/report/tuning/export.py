"""What ``perfmodel tune --json`` prints, and its curve as CSV."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from perfmodel.studies.tune.caps import number, text_mb
from perfmodel.studies.tune.choice.minimax_regret import Compromise, Shared
from perfmodel.studies.tune.model import (
    Choice,
    CurvePoint,
    Fusion,
    Horovod,
    Robust,
    Spans,
    TuneResult,
)
from perfmodel.training.strategies import STRATEGIES


def tuned_json(tuned: TuneResult) -> dict[str, Any]:
    """Return a tuning as JSON; times in seconds, caps in MiB (what PyTorch calls MB)."""
    return {
        "scenario": tuned.scenario.name,
        "workload": tuned.workload,
        "machine": tuned.machine,
        "gpus": tuned.gpus,
        "nodes": tuned.nodes,
        "default": _choice(tuned, tuned.default),
        "asked": None if tuned.asked is None else _choice(tuned, tuned.asked),
        "best_uniform": _choice(tuned, tuned.best_uniform),
        "best_list": _choice(tuned, tuned.best_list),
        "best_integer_list": _choice(tuned, tuned.best_integer_list),
        "lower_bound_s": tuned.lower_bound_s,
        "exact": tuned.exact,
        "plateau": {"within": tuned.plateau.within, "spans_mb": _spans(tuned.plateau.spans_mb)},
        "robust": None if tuned.robust is None else _robust(tuned.robust),
        "default_regrets": list(tuned.default_regrets),
        "curve": [_point(point) for point in tuned.curve],
        "snippet": snippet(tuned, tuned.best_list),
        "snippet_uniform": snippet(tuned, tuned.best_uniform),
        "horovod": None if tuned.horovod is None else _horovod(tuned.horovod),
        "compute_s": tuned.compute_s,
        "assumptions": list(tuned.assumptions),
        "provenance": dict(tuned.provenance),
    }


def compromise_json(found: Compromise) -> dict[str, Any]:
    """Return one setting for several scenarios as JSON."""
    return {
        "best": _shared(found.best) | {"low_mb": found.low_mb, "high_mb": _finite(found.high_mb)},
        "default": _shared(found.default),
        "snippet": f"DistributedDataParallel(model, bucket_cap_mb={_cap(found.best)})",
        "scenarios": [tuned_json(tuned) for tuned in found.each],
    }


def snippet(tuned: TuneResult, choice: Choice) -> str:
    """Return what to paste: the constructor with a setting, and with what else the scenario asks.

    Examples of what it returns: ``DistributedDataParallel(model, bucket_cap_mb=49)``.
    """
    strategy = tuned.scenario.strategy
    options = STRATEGIES[strategy.kind].options(strategy)
    arguments = ["model", *_caps(choice)]
    arguments += [
        f"{name}=True"
        for name in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view")
        if getattr(options, name)
    ]
    arguments += [] if options.broadcast_buffers else ["broadcast_buffers=False"]
    return f"DistributedDataParallel({', '.join(arguments)})"


def _caps(choice: Choice) -> list[str]:
    if choice.bucket_cap_mb_list is not None:
        return [f"bucket_cap_mb_list={text_mb(choice.bucket_cap_mb_list)}"]
    return [] if choice.bucket_cap_mb is None else [f"bucket_cap_mb={number(choice.bucket_cap_mb)}"]


def curve_csv(tuned: TuneResult) -> str:
    """Return the curve as CSV, one line per partition that one cap can make."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    regrets = ("regret", "regret_quick", "regret_slow")[: len(tuned.curve[0].regrets)]
    writer.writerow(
        ("bucket_cap_mb", "low_mb", "high_mb", "buckets", "step_time_s", "exposed_comm_s",
         "simulated", *regrets)
    )  # fmt: skip
    for point in tuned.curve:
        high = "" if math.isinf(point.high_mb) else repr(point.high_mb)
        writer.writerow(
            (number(point.bucket_cap_mb), repr(point.low_mb), high, point.buckets,
             repr(point.step_time_s), repr(point.exposed_comm_s), int(point.simulated),
             *(f"{regret:.6g}" for regret in point.regrets))
        )  # fmt: skip
    return text.getvalue()


def _choice(tuned: TuneResult, choice: Choice) -> dict[str, Any]:
    caps = choice.bucket_cap_mb_list
    return {
        "bucket_cap_mb": choice.bucket_cap_mb,
        "bucket_cap_mb_list": None if caps is None else [_plain(cap) for cap in caps],
        "step_time_s": choice.step_time_s,
        "exposed_comm_s": choice.exposed_comm_s,
        "first_step_time_s": choice.first_step_time_s,
        "regret": tuned.regret(choice),
        "buckets": [
            {
                "index": index, "nbytes": bucket.nbytes, "ready_s": bucket.ready_s,
                "start_s": bucket.start_s, "end_s": bucket.end_s,
            }
            for index, bucket in enumerate(choice.buckets)
        ],
    }  # fmt: skip


def _robust(robust: Robust) -> dict[str, Any]:
    return {
        "bucket_cap_mb": robust.bucket_cap_mb,
        "worst_regret": robust.worst_regret,
        "within": robust.within,
        "spans_mb": _spans(robust.spans_mb),
    }


def _spans(spans: Spans) -> list[list[float | None]]:
    return [[low, _finite(high)] for low, high in spans]


def _point(point: CurvePoint) -> dict[str, Any]:
    return {
        "bucket_cap_mb": point.bucket_cap_mb,
        "low_mb": point.low_mb,
        "high_mb": _finite(point.high_mb),
        "buckets": point.buckets,
        "step_time_s": point.step_time_s,
        "exposed_comm_s": point.exposed_comm_s,
        "simulated": point.simulated,
        "regrets": list(point.regrets),
    }


def _horovod(found: Horovod) -> dict[str, Any]:
    def one(fusion: Fusion) -> dict[str, Any]:
        return {
            "threshold_mb": fusion.threshold_mb, "step_time_s": fusion.step_time_s,
            "exposed_comm_s": fusion.exposed_comm_s, "all_reduces": fusion.all_reduces,
        }  # fmt: skip

    return {
        "cycle_s": found.cycle_s,
        "default": one(found.default),
        "best": one(found.best),
        "curve": [one(fusion) for fusion in found.curve],
        "snippet": f"HOROVOD_FUSION_THRESHOLD={round(found.best.threshold_mb * 1024 * 1024)}",
        "assumptions": list(found.assumptions),
    }


def _shared(shared: Shared) -> dict[str, Any]:
    return {
        "bucket_cap_mb": shared.bucket_cap_mb,
        "step_time_s": list(shared.steps_s),
        "regrets": list(shared.regrets),
        "worst_regret": shared.worst_regret,
    }


def _cap(shared: Shared) -> str:
    return number(shared.bucket_cap_mb or 0.0)


def _plain(cap: float) -> float | int:
    return int(cap) if cap == int(cap) else cap


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value

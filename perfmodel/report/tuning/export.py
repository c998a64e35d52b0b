"""What ``perfmodel tune --json`` prints, and its curve as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from perfmodel.files import as_json, attributes, csv_text
from perfmodel.scenario.strategies.ddp import DdpStrategy
from perfmodel.studies.tune.caps import format_caps, number
from perfmodel.studies.tune.model import Choice, Horovod, MinimaxCap, SharedCap, TuneResult
from perfmodel.training.ddp.strategy import ddp_options


def tuned_json(tuned: TuneResult) -> dict[str, Any]:
    """Return a tuning as JSON; times in seconds, caps in MiB (what PyTorch calls MB)."""
    document = {
        "scenario": tuned.scenario.name,
        **attributes(tuned, "workload machine gpus nodes"),
        "default": _choice(tuned, tuned.default),
        "asked": None if tuned.requested is None else _choice(tuned, tuned.requested),
        "best_uniform": _choice(tuned, tuned.best_uniform),
        "best_list": _choice(tuned, tuned.best_list),
        "best_integer_list": _choice(tuned, tuned.best_integer_list),
        **attributes(tuned, "lower_bound_s exact plateau"),
        "robust": None
        if tuned.robust is None
        else attributes(tuned.robust, "bucket_cap_mb worst_regret within spans_mb"),
        **attributes(tuned, "default_regrets curve"),
        "recommended": _recommended(tuned),
        "snippet": snippet(tuned, _to_use(tuned, tuned.recommended.choices)),
        "snippet_uniform": snippet(
            tuned, _to_use(tuned, [c for c in tuned.recommended.choices if c.bucket_cap_mb])
        ),
        "horovod": None if tuned.horovod is None else _horovod(tuned.horovod),
        **attributes(tuned, "compute_s assumptions provenance"),
    }
    return dict(as_json(document, "tuning", infinite_as_null=True))


def _to_use(tuned: TuneResult, choices: Sequence[Choice]) -> Choice:
    """Return the first of some recommended settings; without any, what to keep."""
    return choices[0] if choices else tuned.recommended.own or tuned.default


def _recommended(tuned: TuneResult) -> dict[str, Any]:
    recommended = tuned.recommended
    names = {
        id(tuned.best_uniform): "best_uniform",
        id(tuned.best_list): "best_list",
        id(tuned.best_integer_list): "best_integer_list",
    }
    return {
        "keep": None if not recommended.keep else "asked" if recommended.own else "default",
        "choices": [names[id(choice)] for choice in recommended.choices],
        "unsure": None if recommended.unsure is None else names[id(recommended.unsure)],
    }


def compromise_json(compromise: MinimaxCap) -> dict[str, Any]:
    """Return one setting for several scenarios as JSON."""
    document = {
        "best": _shared(compromise.best) | attributes(compromise, "low_mb high_mb"),
        "default": _shared(compromise.default),
        "snippet": shared_snippet(compromise),
        "scenarios": [tuned_json(tuned) for tuned in compromise.each],
    }
    return dict(as_json(document, "tuning", infinite_as_null=True))


def shared_snippet(compromise: MinimaxCap) -> str:
    """Return what to paste for a cap that serves several scenarios."""
    if compromise.keep_default:
        return "DistributedDataParallel(model)"
    cap = number(compromise.best.bucket_cap_mb or 0.0)
    return f"DistributedDataParallel(model, bucket_cap_mb={cap})"


def snippet(tuned: TuneResult, choice: Choice) -> str:
    """Return what to paste: the constructor with the caps and the other options of the scenario.

    Examples of what it returns: ``DistributedDataParallel(model, bucket_cap_mb=49)``.
    """
    strategy = tuned.scenario.strategy
    assert isinstance(strategy, DdpStrategy)  # what else is tuned
    options = ddp_options(strategy)
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
        return [f"bucket_cap_mb_list={format_caps(choice.bucket_cap_mb_list)}"]
    return [] if choice.bucket_cap_mb is None else [f"bucket_cap_mb={number(choice.bucket_cap_mb)}"]


def curve_csv(tuned: TuneResult) -> str:
    """Return the curve as CSV, one line per partition that one cap can make."""
    regrets = ("regret", "regret_quick", "regret_slow")[: len(tuned.curve[0].regrets)]
    titles = (
        "bucket_cap_mb",
        "low_mb",
        "high_mb",
        "buckets",
        "step_time_s",
        "exposed_comm_s",
        "simulated",
        *regrets,
    )
    rows = (
        (
            number(point.bucket_cap_mb),
            repr(point.low_mb),
            "" if math.isinf(point.high_mb) else repr(point.high_mb),
            point.buckets,
            repr(point.step_time_s),
            repr(point.exposed_comm_s),
            int(point.simulated),
            *(f"{regret:.6g}" for regret in point.regrets),
        )
        for point in tuned.curve
    )
    return csv_text(titles, rows)


def _choice(tuned: TuneResult, choice: Choice) -> dict[str, Any]:
    caps = choice.bucket_cap_mb_list
    return {
        "bucket_cap_mb": choice.bucket_cap_mb,
        "bucket_cap_mb_list": None
        if caps is None
        else [int(cap) if cap == int(cap) else cap for cap in caps],
        **attributes(choice, "step_time_s exposed_comm_s first_step_time_s"),
        **attributes(choice, "gains gains_nearby noise"),
        "regret": tuned.regret(choice),
        "buckets": [{"index": index} | asdict(b) for index, b in enumerate(choice.buckets)],
    }


def _horovod(horovod: Horovod) -> dict[str, Any]:
    return {
        **attributes(horovod, "cycle_s default best curve"),
        "snippet": f"HOROVOD_FUSION_THRESHOLD={round(horovod.best.threshold_mb * 1024 * 1024)}",
        "assumptions": horovod.assumptions,
    }


def _shared(shared: SharedCap) -> dict[str, Any]:
    times = {"bucket_cap_mb": shared.bucket_cap_mb, "step_time_s": shared.steps_s}
    return times | attributes(shared, "regrets worst_regret")

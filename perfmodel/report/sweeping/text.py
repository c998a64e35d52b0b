"""Sentences and tables of a sweep; the page and the terminal say the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Table
from perfmodel.studies.sweep import Answer, SweepResult
from perfmodel.studies.sweep.run import format_value
from perfmodel.studies.sweep.variants import Variant

Pair = tuple[Variant, Answer]
"""A variant that was answered, and its figures."""

FASTEST_FIRST = "Most samples per second first; those that do not fit in memory last."


def answered(swept: SweepResult) -> list[Pair]:
    """Variants with an answer: those that fit first, then by throughput."""
    pairs = zip(swept.variants, swept.answers, strict=True)
    done = [(variant, answer) for variant, answer in pairs if answer.status == "ok"]
    return sorted(done, key=lambda pair: (not pair[1].fits, -(pair[1].samples_per_s or 0.0)))


def failed(swept: SweepResult) -> list[Pair]:
    """Variants without an answer."""
    pairs = zip(swept.variants, swept.answers, strict=True)
    return [(variant, answer) for variant, answer in pairs if answer.status == "failed"]


def has_one_size(pairs: Sequence[Pair]) -> bool:
    """Whether all variants train on as many GPUs."""
    return len({answer.gpus for _, answer in pairs}) < 2


def per_gpu(answer: Answer) -> float:
    """Samples per second of one GPU."""
    return (answer.samples_per_s or 0.0) / (answer.gpus or 1)


def short_names(fields: Sequence[str]) -> dict[str, str]:
    """Last part of each field's name where no other field has the same."""
    ends = [field.rpartition(".")[2] for field in fields]
    return {f: f if ends.count(e) > 1 else e for f, e in zip(fields, ends, strict=True)}


def brief(value: object) -> str:
    """Write a value for people: ``fsdp, shard_gpus=8`` for a section, "default" for none."""
    if value is None:
        return "default"
    if not isinstance(value, Mapping):
        return format_value(value)
    rest = {name: inner for name, inner in value.items() if name != "kind"}
    parts = [name if inner is True else f"{name}={brief(inner)}" for name, inner in rest.items()]
    return ", ".join([*([str(value["kind"])] if "kind" in value else []), *parts])


def describe(values: Mapping[str, object]) -> str:
    """Write set fields for people; a field alone by its value if that is a section."""
    if len(values) == 1 and isinstance(next(iter(values.values())), Mapping):
        return brief(next(iter(values.values())))
    names = short_names(list(values))
    return ", ".join(f"{names[field]}={brief(value)}" for field, value in values.items())


def headline(swept: SweepResult) -> str:
    """Name the variant with the highest throughput that fits."""
    pairs = answered(swept)
    fitting = [pair for pair in pairs if pair[1].fits]
    if not fitting:
        return "No variant fits in memory" if pairs else "No variant was answered"
    variant, answer = fitting[0]
    rate = f"{quantities.count(answer.samples_per_s or 0.0)} samples/s"
    return f"Quickest of {len(pairs):,}: {describe(variant.set)}, {rate}"


def findings(swept: SweepResult) -> Iterator[str]:
    """Say how far apart the variants are, and what else decides."""
    pairs = [pair for pair in answered(swept) if pair[1].fits]
    if len(pairs) > 1:
        (_, best), (last, slowest) = pairs[0], pairs[-1]
        share = (slowest.samples_per_s or 0.0) / (best.samples_per_s or 1.0)
        yield (
            f"The slowest that fits ({describe(last.set)}) trains "
            f"{quantities.count(slowest.samples_per_s or 0.0)} samples/s, "
            f"{quantities.percent(share)} of that."
        )
    if not has_one_size(pairs):
        variant, answer = max(pairs, key=lambda pair: per_gpu(pair[1]))
        rate = quantities.count(per_gpu(answer))
        yield f"Most for each GPU: {describe(variant.set)}, {rate} samples/s per GPU."
    lacking = [variant for variant, answer in answered(swept) if not answer.fits]
    if lacking:
        only = f" ({describe(lacking[0].set)})" if len(lacking) == 1 else ""
        yield f"{len(lacking):,}{only} {'does' if only else 'do'} not fit in memory."
    if swept.failed:
        yield f"{swept.failed:,} could not be answered."


def variant_table(swept: SweepResult, most: int) -> Table:
    """List variants with their figures, the fastest first."""
    headers = (
        *swept.fields,
        ">GPUs",
        ">step",
        ">80 % interval",
        ">exposed",
        ">samples/s",
        ">memory",
        "bottleneck",
    )
    rows = [
        (
            *(brief(variant.set.get(name)) for name in swept.fields),
            f"{answer.gpus:,}",
            quantities.duration(answer.step_time_s or 0.0),
            _interval(answer),
            quantities.duration(answer.exposed_comm_s or 0.0),
            quantities.count(answer.samples_per_s or 0.0),
            quantities.size(answer.memory_bytes or 0.0),
            (answer.bottleneck or "") + memory_note(answer),
        )
        for variant, answer in answered(swept)[:most]
    ]
    return Table(headers, rows)


def _interval(answer: Answer) -> str:
    if answer.low_s is None or answer.high_s is None:
        return "not known"
    return quantities.span(answer.low_s, answer.high_s, quantities.duration)


def memory_note(answer: Answer) -> str:
    """Say in brackets that a variant does not fit, or only just."""
    if not answer.fits:
        return " (does not fit in memory)"
    return " (memory is tight)" if answer.tight else ""

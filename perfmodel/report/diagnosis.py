"""A diagnosis for people: the verdict in a sentence, the sizes, and the suspects to look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from perfmodel.collectives.catalog import bus_factor
from perfmodel.report.common import quantities
from perfmodel.report.common.document import Block, Paragraph, Table, join_applying, paragraphs
from perfmodel.validate.diagnose import Diagnosis, Explanation
from perfmodel.validate.suspects import suspect_texts

MOST_ROWS = 24
MOST_SUSPECTS = 3


def diagnosis_lines(diagnoses: Iterable[Diagnosis]) -> Iterator[Block]:
    """What is said of each table of a log."""
    for diagnosis in diagnoses:
        yield Paragraph(verdict_text(diagnosis), "headline")
        yield _table(diagnosis)
        yield from _suspects(diagnosis)


def verdict_text(diagnosis: Diagnosis) -> str:
    """Say in a sentence or two how the times compare with what is expected."""
    machines = f" on {quantities.nodes(diagnosis.nodes)}" if diagnosis.nodes > 1 else ""
    subject = f"{quantities.operation(diagnosis.op)} over {diagnosis.ranks} GPUs{machines}"
    if diagnosis.slow_from_bytes is None:
        return f"{subject}: as expected. Most sizes lie within the 80 % interval, or are faster."
    share = quantities.percent(diagnosis.shortfall)
    begin = quantities.size(diagnosis.slow_from_bytes)
    text = f"{subject}: {share} below the expected bandwidth from {begin} on"
    often = quantities.percent(diagnosis.probability)
    recorded = suspect_texts().beyond.sweeps
    if diagnosis.verdict == "slow":
        return f"{text}. Of {recorded} recorded sweeps hardly any ({often}) was as slow."
    return (
        f"{text}. {often} of {recorded} recorded sweeps were as slow beside what was expected of "
        "them: look before you call it broken."
    )


def _table(diagnosis: Diagnosis) -> Table:
    sizes, factor = diagnosis.sizes, bus_factor(diagnosis.op, diagnosis.ranks)
    return Table(
        (">size", ">measured", ">busbw", ">expected", ">80 % interval", ">slower by", ""),
        [
            (
                quantities.size(each.nbytes),
                quantities.duration(each.measured_s),
                quantities.rate(factor * each.nbytes / each.measured_s),
                quantities.duration(each.expected_s),
                quantities.span(*each.interval_s, quantities.duration),
                quantities.percent_column(each.measured_s / each.expected_s - 1),
                "slow" if each.is_slow else "",
            )
            for each in sizes[:: -(-len(sizes) // MOST_ROWS)]
        ],
    )


def _suspects(diagnosis: Diagnosis) -> Iterator[Block]:
    slow, found = diagnosis.slow_from_bytes is not None, diagnosis.suspects
    if not found:
        yield from paragraphs(
            ["None of the faults that were simulated explains it."] if slow else []
        )
        return
    yield Paragraph("Suspects:" if slow else "If it was quicker before, look at:")
    for at, suspect in enumerate(found[:MOST_SUSPECTS], 1):
        yield Paragraph(f"{at}. {_explanation(suspect)}")
        yield from paragraphs(f"   - {_look_at(name)}" for name in suspect.names)
    if not slow:
        yield Paragraph("Times bend as with these faults, but within the interval.", "note")


def _explanation(suspect: Explanation) -> str:
    share = quantities.percent(suspect.explained)
    lines = ", ".join(map(str, suspect.lines[:5]))
    return join_applying(
        (True, f"Explains {share} of the difference."),
        (suspect.lines, f"The log says so in line {lines}."),
        (
            len(suspect.names) > 1,
            (
                "Times do not tell these apart: repeat the test on single hosts, then on pairs of "
                "hosts, then with one NIC at a time (NCCL_IB_HCA)."
            ),
        ),
    )


def _look_at(name: str) -> str:
    text = suspect_texts().suspects[name]
    return f"{text.what[0].upper()}{text.what[1:]}. Look at: {text.look_at}."


def diagnosis_json(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """Return the diagnoses as a document."""
    return {
        "tables": [
            {
                **asdict(each),
                "verdict": each.verdict,
                "slow_from_bytes": each.slow_from_bytes,
                "shortfall": each.shortfall,
                "probability": each.probability,
                "suspects": [
                    {
                        **asdict(suspect),
                        "faults": {
                            name: suspect_texts()
                            .suspects[name]
                            .model_dump(include={"what", "look_at"})
                            for name in suspect.names
                        },
                    }
                    for suspect in each.suspects
                ],
            }
            for each in diagnoses
        ]
    }

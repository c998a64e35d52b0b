"""Lists of prices and rates of failures: which of their lines a candidate of a plan has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from perfmodel.files import FileModel, Parts, Seconds, load_document
from perfmodel.scenario import CandidateSection, PlanSection, Scenario
from perfmodel.scenario.sections.plan import HourlyPrice
from perfmodel.studies.plan.candidates import Hardware


class Line(FileModel):
    """One line: what it is about, when it was seen, and where.

    `node`: the machine that it is for; None for any with these GPUs.
    """

    gpu: str
    node: str | None = None
    date: str
    source: str


class ListedPrice(Line):
    """What a GPU costs an hour."""

    price_per_gpu_hour: HourlyPrice


class ListedFailures(Line):
    """How often a node of so many GPUs fails; smaller ones fail less often by their share."""

    mtbf_per_node: Annotated[Seconds, Field(gt=0)]
    gpus_per_node: Parts


class PriceList(FileModel):
    """A file of prices and failures."""

    perfmodel: Literal[1]
    kind: Literal["prices"]
    prices: tuple[ListedPrice, ...] = ()
    failures: tuple[ListedFailures, ...] = ()


LineT = TypeVar("LineT", bound=Line)


def apply_list(
    scenario: Scenario, section: PlanSection, hardware: Mapping[str, Hardware]
) -> tuple[PlanSection, dict[str, str]]:
    """Give candidates the listed prices and rates that they do not state; return the sources, too.

    Raises `InputError`: a list that cannot be read, a price in another currency than the plan's, or
        no rate of failures of a GPU for which none is stated.
    """
    if section.prices is None:
        return section, {}
    listed = load_document(
        PriceList,
        Path(__file__).with_name("prices.yaml")
        if section.prices == "list"
        else scenario.origin.resolve("plan.prices", section.prices),
    )
    sources: dict[str, str] = {}

    def complete(candidate: CandidateSection) -> CandidateSection:
        """Return the candidate with what it does not state."""
        changes: dict[str, object] = {}
        name, node = candidate.name, hardware[candidate.name]
        price = _find(listed.prices, candidate, node)
        if price and candidate.price_per_gpu_hour is None and candidate.purchase is None:
            changes["price_per_gpu_hour"] = price.price_per_gpu_hour
            sources[f"price of {name}"] = f"{price.source}, {price.date}"
        rate, failures = _find(listed.failures, candidate, node), section.failures
        is_open = failures and not (failures.mtbf_per_node or candidate.mtbf_per_node)
        if is_open and not isinstance(node, str):
            if rate is None:
                raise scenario.fault(
                    "plan.failures.mtbf_per_node",
                    f"nothing, and no rate of a {node[1].name} is listed",
                    f"a duration such as '264 d', here or in candidate {name!r} alone",
                )
            changes["mtbf_per_node"] = rate.mtbf_per_node * rate.gpus_per_node / node[0]
            sources[f"failures of {name}"] = f"{rate.source}, {rate.date}"
        return candidate.model_copy(update=changes)

    priced = section.model_copy(
        update={"candidates": tuple(complete(candidate) for candidate in section.candidates)}
    )
    paid = sorted({money.currency for money in priced.money.values()})
    scenario.refuse_if(
        len(paid) > 1, "plan.prices", " and ".join(paid), "one currency: nothing is converted"
    )
    return priced, sources


def _find(lines: Iterable[LineT], candidate: CandidateSection, node: Hardware) -> LineT | None:
    """Return the line of a candidate's machine, else of its GPU; None where there is none."""
    own = (
        each
        for each in lines
        if not isinstance(node, str)
        and each.gpu == node[1].name
        and each.node in {candidate.node, None}
    )
    return min(own, key=lambda each: each.node is None, default=None)

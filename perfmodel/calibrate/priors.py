"""What a fit of our own measurements expects of parameters and of runs before it sees data."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from perfmodel.calibrate.parameters import FactorPrior, ParameterName
from perfmodel.calibrate.profile import RunSpread
from perfmodel.files import FileModel, load_document


class CostPriors(FileModel):
    """The priors of a fit of our own measurements, as `priors.yaml` has them."""

    levers: dict[ParameterName, FactorPrior]
    """How far each kind of parameter may be from its start; deviations of logarithms."""
    runs: RunSpread
    """How much a machine differs from itself between runs."""
    source: str


@cache
def shipped_cost_priors() -> CostPriors:
    """Read the priors that are shipped with the package."""
    return load_document(CostPriors, Path(__file__).with_name("priors.yaml"))

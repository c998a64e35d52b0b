"""What a fit of our own measurements expects of parameters and of runs before it sees data."""

from __future__ import annotations

from perfmodel.calibrate.parameters import FactorPrior, ParameterName
from perfmodel.calibrate.profile import RunSpread
from perfmodel.files import FileModel, shipped


class CostPriors(FileModel):
    """The priors of a fit of our own measurements, as `priors.yaml` has them."""

    levers: dict[ParameterName, FactorPrior]
    """How far each kind of parameter may be from its start; deviations of logarithms."""
    runs: RunSpread
    """How much a machine differs from itself between runs."""
    source: str


shipped_cost_priors = shipped(CostPriors, __file__, "priors.yaml")
"""Reads the priors that are shipped with the package."""

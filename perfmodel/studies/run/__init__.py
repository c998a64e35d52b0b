"""Predict the step time of one scenario at all its cluster sizes: `run_scenario`.

`collective_rows` times single collectives on a machine, without a scenario.
"""

from perfmodel.studies.run.collective import collective_rows
from perfmodel.studies.run.run import run_scenario

__all__ = ["collective_rows", "run_scenario"]

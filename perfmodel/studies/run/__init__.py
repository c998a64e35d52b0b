"""Predict the step time of one scenario at all its cluster sizes: `run_scenario`.

`collective.collective_rows` times single collectives on a machine, without a scenario.
"""

from perfmodel.studies.run.run import run_scenario

__all__ = ["run_scenario"]

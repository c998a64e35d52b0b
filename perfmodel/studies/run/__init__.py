"""The one place where a scenario becomes a result: names resolved, plans run, sizes compared."""

from perfmodel.studies.run.collective import collective_rows
from perfmodel.studies.run.run import run_scenario

__all__ = ["collective_rows", "run_scenario"]

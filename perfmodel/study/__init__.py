"""The one place where a scenario becomes a result: names resolved, plans run, sizes compared."""

from perfmodel.study.collective import collective_rows
from perfmodel.study.run import run_scenario

__all__ = ["collective_rows", "run_scenario"]

"""perfmodel: a discrete-event performance model of distributed training.

What the commands do, as functions: ``load_scenario``, ``run``, ``tune_scenario`` ... Each is
imported when it is first used, so that ``import perfmodel`` costs nothing. Where a folder has the
bare word (``perfmodel.tune``), the function's name says what it takes.

Examples
--------
>>> import perfmodel
>>> question = perfmodel.load_scenario("resnet50-dgx-a100", ["scale=null", "cluster.nodes=1"])
>>> result = perfmodel.run(question)
>>> result.main.gpus
8
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from perfmodel.version import __version__

if TYPE_CHECKING:
    from perfmodel.calibrate import read_profile
    from perfmodel.collectives.schedule import Schedule
    from perfmodel.collectives.verify import verify
    from perfmodel.compare.compared import compare as compare_scenarios
    from perfmodel.plan.run import plan_scenario
    from perfmodel.result import Result
    from perfmodel.scenario import Scenario, load_scenario
    from perfmodel.study import collective_rows as collective
    from perfmodel.study import run_scenario as run
    from perfmodel.sweep.run import run_sweep
    from perfmodel.sweep.variants import variants
    from perfmodel.topology.model import Topology
    from perfmodel.tune.tuning import tune_scenario

__all__ = [
    "Result",
    "Scenario",
    "Schedule",
    "Topology",
    "__version__",
    "collective",
    "compare_scenarios",
    "load_scenario",
    "plan_scenario",
    "read_profile",
    "run",
    "run_sweep",
    "tune_scenario",
    "variants",
    "verify",
]

_HOMES = {
    "Result": "perfmodel.result:Result",
    "Scenario": "perfmodel.scenario:Scenario",
    "Schedule": "perfmodel.collectives.schedule:Schedule",
    "Topology": "perfmodel.topology.model:Topology",
    "collective": "perfmodel.study:collective_rows",
    "compare_scenarios": "perfmodel.compare.compared:compare",
    "load_scenario": "perfmodel.scenario:load_scenario",
    "plan_scenario": "perfmodel.plan.run:plan_scenario",
    "read_profile": "perfmodel.calibrate:read_profile",
    "run": "perfmodel.study:run_scenario",
    "run_sweep": "perfmodel.sweep.run:run_sweep",
    "tune_scenario": "perfmodel.tune.tuning:tune_scenario",
    "variants": "perfmodel.sweep.variants:variants",
    "verify": "perfmodel.collectives.verify:verify",
}
"""Where each word lives."""


def __getattr__(name: str) -> object:
    """Import a word of the API when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")
    module, _, word = _HOMES[name].partition(":")
    return getattr(import_module(module), word)


def __dir__() -> list[str]:
    return sorted(__all__)

"""perfmodel: a discrete-event performance model of distributed training.

What the commands do, as functions: ``load_scenario``, ``run``, ``tune_scenario`` ... Each is
imported when it is first used, so that ``import perfmodel`` costs nothing. Where a folder has the
bare word (``perfmodel.studies.tune``), the function's name says what it takes.

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
    from perfmodel.scenario import Scenario, load_scenario
    from perfmodel.studies.compare.compare import compare as compare_scenarios
    from perfmodel.studies.plan.run import plan_scenario
    from perfmodel.studies.run import run_scenario as run
    from perfmodel.studies.run.collective import collective_rows as collective
    from perfmodel.studies.run.result import Result
    from perfmodel.studies.sweep.run import run_sweep
    from perfmodel.studies.sweep.variants import variants
    from perfmodel.studies.tune.run import tune_scenario
    from perfmodel.topology.model import Topology
    from perfmodel.torch_modules.capture import Capture, capture
    from perfmodel.torch_modules.ddp_steps import record_steps


__all__ = [
    "Capture",
    "Result",
    "Scenario",
    "Schedule",
    "Topology",
    "__version__",
    "capture",
    "collective",
    "compare_scenarios",
    "load_scenario",
    "plan_scenario",
    "read_profile",
    "record_steps",
    "run",
    "run_sweep",
    "tune_scenario",
    "variants",
    "verify",
]

_HOMES = {
    "Capture": "perfmodel.torch_modules.capture:Capture",
    "Result": "perfmodel.studies.run.result:Result",
    "Scenario": "perfmodel.scenario:Scenario",
    "Schedule": "perfmodel.collectives.schedule:Schedule",
    "Topology": "perfmodel.topology.model:Topology",
    "capture": "perfmodel.torch_modules.capture:capture",
    "collective": "perfmodel.studies.run.collective:collective_rows",
    "compare_scenarios": "perfmodel.studies.compare.compare:compare",
    "load_scenario": "perfmodel.scenario:load_scenario",
    "plan_scenario": "perfmodel.studies.plan.run:plan_scenario",
    "read_profile": "perfmodel.calibrate:read_profile",
    "record_steps": "perfmodel.torch_modules.ddp_steps:record_steps",
    "run": "perfmodel.studies.run:run_scenario",
    "run_sweep": "perfmodel.studies.sweep.run:run_sweep",
    "tune_scenario": "perfmodel.studies.tune.run:tune_scenario",
    "variants": "perfmodel.studies.sweep.variants:variants",
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

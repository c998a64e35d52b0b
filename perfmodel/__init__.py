"""perfmodel: a discrete-event performance model of distributed training.

What the commands do, as functions: ``run``, ``tune``, ``compare``, ``sweep``, ``plan``, ``advise``,
``collective`` ... Each takes names, paths or objects, and is imported when it is first used, so
that ``import perfmodel`` costs nothing. Results have ``plot``, ``to_frame`` and ``to_html``.

Examples
--------
>>> import perfmodel as pm
>>> pm.run("resnet50-dgx-a100", scale=None, cluster__nodes=1).main.gpus
8
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from perfmodel.version import __version__

if TYPE_CHECKING:
    from perfmodel.api.collectives import collective, diagnose, verify
    from perfmodel.api.functions import (
        advise,
        compare,
        doctor,
        plan,
        run,
        sweep,
        tune,
        variants,
    )
    from perfmodel.api.functions import compare as compare_scenarios
    from perfmodel.api.functions import plan as plan_scenario
    from perfmodel.api.functions import sweep as run_sweep
    from perfmodel.api.functions import tune as tune_scenario
    from perfmodel.calibrate import read_profile
    from perfmodel.collectives.schedule import Schedule
    from perfmodel.errors import PerfmodelError, ScheduleError
    from perfmodel.library.machine import Machine
    from perfmodel.library.model import CommLibrary, load_library
    from perfmodel.scenario import Scenario, load_scenario
    from perfmodel.simulate import simulate_plan as simulate
    from perfmodel.simulate.engine.own_processes import NetworkView
    from perfmodel.studies.run.result import Result
    from perfmodel.topology import build_cluster as topology
    from perfmodel.topology.model import Topology
    from perfmodel.torch_modules.capture import Capture, capture
    from perfmodel.torch_modules.ddp_steps import record_steps
    from perfmodel.training.plan.step_builder import StepBuilder
    from perfmodel.training.plan.step_plan import (
        Collective,
        Communicator,
        Compute,
        RankClass,
        StepPlan,
        Stream,
        Task,
    )
    from perfmodel.training.strategy import StepRequest


__all__ = [
    "Capture",
    "Collective",
    "CommLibrary",
    "Communicator",
    "Compute",
    "Machine",
    "NetworkView",
    "PerfmodelError",
    "RankClass",
    "Result",
    "Scenario",
    "Schedule",
    "ScheduleError",
    "StepBuilder",
    "StepPlan",
    "StepRequest",
    "Stream",
    "Task",
    "Topology",
    "__version__",
    "advise",
    "capture",
    "collective",
    "compare",
    "compare_scenarios",
    "diagnose",
    "doctor",
    "load_library",
    "load_scenario",
    "plan",
    "plan_scenario",
    "read_profile",
    "record_steps",
    "run",
    "run_sweep",
    "simulate",
    "sweep",
    "topology",
    "tune",
    "tune_scenario",
    "variants",
    "verify",
]

_HOMES = {
    "Capture": "perfmodel.torch_modules.capture:Capture",
    "Collective": "perfmodel.training.plan.step_plan:Collective",
    "CommLibrary": "perfmodel.library.model:CommLibrary",
    "Communicator": "perfmodel.training.plan.step_plan:Communicator",
    "Compute": "perfmodel.training.plan.step_plan:Compute",
    "Machine": "perfmodel.library.machine:Machine",
    "NetworkView": "perfmodel.simulate.engine.own_processes:NetworkView",
    "PerfmodelError": "perfmodel.errors:PerfmodelError",
    "RankClass": "perfmodel.training.plan.step_plan:RankClass",
    "Result": "perfmodel.studies.run.result:Result",
    "Scenario": "perfmodel.scenario:Scenario",
    "Schedule": "perfmodel.collectives.schedule:Schedule",
    "ScheduleError": "perfmodel.errors:ScheduleError",
    "StepBuilder": "perfmodel.training.plan.step_builder:StepBuilder",
    "StepPlan": "perfmodel.training.plan.step_plan:StepPlan",
    "StepRequest": "perfmodel.training.strategy:StepRequest",
    "Stream": "perfmodel.training.plan.step_plan:Stream",
    "Task": "perfmodel.training.plan.step_plan:Task",
    "Topology": "perfmodel.topology.model:Topology",
    "advise": "perfmodel.api.functions:advise",
    "capture": "perfmodel.torch_modules.capture:capture",
    "collective": "perfmodel.api.collectives:collective",
    "compare": "perfmodel.api.functions:compare",
    "compare_scenarios": "perfmodel.api.functions:compare",
    "diagnose": "perfmodel.api.collectives:diagnose",
    "doctor": "perfmodel.api.functions:doctor",
    "load_library": "perfmodel.library.model:load_library",
    "load_scenario": "perfmodel.scenario:load_scenario",
    "plan": "perfmodel.api.functions:plan",
    "plan_scenario": "perfmodel.api.functions:plan",
    "read_profile": "perfmodel.calibrate:read_profile",
    "record_steps": "perfmodel.torch_modules.ddp_steps:record_steps",
    "run": "perfmodel.api.functions:run",
    "run_sweep": "perfmodel.api.functions:sweep",
    "simulate": "perfmodel.simulate",
    "sweep": "perfmodel.api.functions:sweep",
    "topology": "perfmodel.topology",
    "tune": "perfmodel.api.functions:tune",
    "tune_scenario": "perfmodel.api.functions:tune",
    "variants": "perfmodel.api.functions:variants",
    "verify": "perfmodel.api.collectives:verify",
}
"""Where each word lives; `topology` and `simulate` are packages that can be called."""


def __getattr__(name: str) -> object:
    """Import a word of the API when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")
    module, _, word = _HOMES[name].partition(":")
    home = import_module(module)
    return getattr(home, word) if word else home


def __dir__() -> list[str]:
    return sorted(__all__)

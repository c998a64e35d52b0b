"""The scenario file: its sections, their validation, `load_scenario`; no names are resolved."""

from perfmodel.scenario.load import change_scenario, load_scenario, make_scenario
from perfmodel.scenario.model import (
    ClusterSize,
    Scenario,
    batch_per_gpu,
    scenario_digest,
    sizes,
    sizes_left_out,
)
from perfmodel.scenario.sections.cluster import LibrarySection
from perfmodel.scenario.sections.events import (
    DegradeEvent,
    DownEvent,
    EventSection,
    LoseEvent,
    OtherJob,
    SlowEvent,
    TrafficEvent,
)
from perfmodel.scenario.sections.model import ModelSection
from perfmodel.scenario.sections.plan import (
    CandidateSection,
    FailureSection,
    Money,
    PlanSection,
    PowerSection,
    TargetSection,
    UpgradeSection,
)
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.scenario.strategies.ddp import DdpStrategy
from perfmodel.scenario.strategies.servers import DataParallelStrategy

__all__ = [
    "CandidateSection",
    "ClusterSize",
    "DataParallelStrategy",
    "DdpStrategy",
    "DegradeEvent",
    "DownEvent",
    "EventSection",
    "FailureSection",
    "LibrarySection",
    "LoseEvent",
    "ModelSection",
    "Money",
    "OtherJob",
    "PlanSection",
    "PowerSection",
    "Scenario",
    "SlowEvent",
    "TargetSection",
    "TrafficEvent",
    "UpgradeSection",
    "WhatIf",
    "batch_per_gpu",
    "change_scenario",
    "load_scenario",
    "make_scenario",
    "scenario_digest",
    "sizes",
    "sizes_left_out",
]

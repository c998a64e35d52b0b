"""The scenario file: its sections, their validation, `load_scenario`; no names are resolved."""

from perfmodel.files.money import Money
from perfmodel.scenario.load import change_scenario, load_scenario, read_question
from perfmodel.scenario.model import ClusterSize, Scenario, batch_per_gpu, scenario_digest, sizes
from perfmodel.scenario.sections.base import (
    Placement,
)
from perfmodel.scenario.sections.cluster import ClusterSection, FabricSection, MixedSection
from perfmodel.scenario.sections.events import (
    DegradeEvent,
    DownEvent,
    EventSection,
    JitterEvent,
    LoseEvent,
    OtherJob,
    SlowEvent,
    TrafficEvent,
)
from perfmodel.scenario.sections.library import LibrarySection
from perfmodel.scenario.sections.plan import (
    CandidateSection,
    FailureSection,
    PlanSection,
    PowerSection,
    PurchaseSection,
    TargetSection,
    UpgradeSection,
)
from perfmodel.scenario.sections.strategy import (
    DataParallelStrategy,
    DdpStrategy,
    StrategySection,
)
from perfmodel.scenario.sections.sweep import SweepSection
from perfmodel.scenario.sections.training import (
    ComputeSection,
    ModelSection,
    ScaleSection,
    TrainingSection,
)
from perfmodel.scenario.sections.what_if import WhatIf
from perfmodel.scenario.source_map import SourceMap

__all__ = [
    "CandidateSection",
    "ClusterSection",
    "ClusterSize",
    "ComputeSection",
    "DataParallelStrategy",
    "DdpStrategy",
    "DegradeEvent",
    "DownEvent",
    "EventSection",
    "FabricSection",
    "FailureSection",
    "JitterEvent",
    "LibrarySection",
    "LoseEvent",
    "MixedSection",
    "ModelSection",
    "Money",
    "OtherJob",
    "Placement",
    "PlanSection",
    "PowerSection",
    "PurchaseSection",
    "ScaleSection",
    "Scenario",
    "SlowEvent",
    "SourceMap",
    "StrategySection",
    "SweepSection",
    "TargetSection",
    "TrafficEvent",
    "TrainingSection",
    "UpgradeSection",
    "WhatIf",
    "batch_per_gpu",
    "change_scenario",
    "load_scenario",
    "read_question",
    "scenario_digest",
    "sizes",
]

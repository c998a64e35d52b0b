"""What the user asks: one scenario per file, its shape validated; names are resolved in study."""

from perfmodel.scenario.events import (
    DegradeEvent,
    DownEvent,
    EventSection,
    JitterEvent,
    LoseEvent,
    OtherJob,
    SlowEvent,
    TrafficEvent,
)
from perfmodel.scenario.load import changed, load_scenario, question_of
from perfmodel.scenario.model import (
    Scenario,
    Size,
    batch_per_gpu,
    scenario_digest,
    sizes,
)
from perfmodel.scenario.money import Money
from perfmodel.scenario.origin import Origin
from perfmodel.scenario.plan import (
    CandidateSection,
    FailureSection,
    PlanSection,
    PowerSection,
    PurchaseSection,
    TargetSection,
    UpgradeSection,
)
from perfmodel.scenario.sections import (
    ClusterSection,
    ComputeSection,
    DataParallelStrategy,
    DdpStrategy,
    FabricSection,
    LibrarySection,
    MixedSection,
    ModelSection,
    Placement,
    ScaleSection,
    Strategy,
    TrainingSection,
)
from perfmodel.scenario.sweep import SweepSection
from perfmodel.scenario.what_if import WhatIf

__all__ = [
    "CandidateSection",
    "ClusterSection",
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
    "Origin",
    "OtherJob",
    "Placement",
    "PlanSection",
    "PowerSection",
    "PurchaseSection",
    "ScaleSection",
    "Scenario",
    "Size",
    "SlowEvent",
    "Strategy",
    "SweepSection",
    "TargetSection",
    "TrafficEvent",
    "TrainingSection",
    "UpgradeSection",
    "WhatIf",
    "batch_per_gpu",
    "changed",
    "load_scenario",
    "question_of",
    "scenario_digest",
    "sizes",
]

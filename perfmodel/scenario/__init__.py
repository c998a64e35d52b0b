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
from perfmodel.scenario.load import load_scenario, question_of
from perfmodel.scenario.model import (
    Scenario,
    Size,
    batch_per_gpu,
    scenario_digest,
    sizes,
)
from perfmodel.scenario.origin import Origin
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

__all__ = [
    "ClusterSection",
    "ComputeSection",
    "DataParallelStrategy",
    "DdpStrategy",
    "DegradeEvent",
    "DownEvent",
    "EventSection",
    "FabricSection",
    "JitterEvent",
    "LibrarySection",
    "LoseEvent",
    "MixedSection",
    "ModelSection",
    "Origin",
    "OtherJob",
    "Placement",
    "ScaleSection",
    "Scenario",
    "Size",
    "SlowEvent",
    "Strategy",
    "TrafficEvent",
    "TrainingSection",
    "batch_per_gpu",
    "load_scenario",
    "question_of",
    "scenario_digest",
    "sizes",
]

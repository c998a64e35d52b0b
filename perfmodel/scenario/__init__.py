"""What the user asks: one scenario per file, its shape validated; names are resolved in study."""

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
    ModelSection,
    ScaleSection,
    Strategy,
    TrainingSection,
)

__all__ = [
    "ClusterSection",
    "ComputeSection",
    "DataParallelStrategy",
    "DdpStrategy",
    "FabricSection",
    "LibrarySection",
    "ModelSection",
    "Origin",
    "ScaleSection",
    "Scenario",
    "Size",
    "Strategy",
    "TrainingSection",
    "batch_per_gpu",
    "load_scenario",
    "question_of",
    "scenario_digest",
    "sizes",
]

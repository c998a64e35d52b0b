"""`run_sweep`: many variants of a scenario in parallel, each once, resumable from a store."""

from perfmodel.studies.sweep.run import SweepResult, run_sweep
from perfmodel.studies.sweep.store import Store
from perfmodel.studies.sweep.variants import Variant, variants
from perfmodel.studies.sweep.worker import Answer, answer

__all__ = [
    "Answer",
    "Store",
    "SweepResult",
    "Variant",
    "answer",
    "run_sweep",
    "variants",
]

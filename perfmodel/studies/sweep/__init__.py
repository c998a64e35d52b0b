"""`run_sweep`: many variants of a scenario in parallel, each once, resumable from a store."""

from perfmodel.studies.sweep.run import SweepResult, run_sweep
from perfmodel.studies.sweep.store import Answer, Store, answer
from perfmodel.studies.sweep.variants import Variant, variants

__all__ = [
    "Answer",
    "Store",
    "SweepResult",
    "Variant",
    "answer",
    "run_sweep",
    "variants",
]

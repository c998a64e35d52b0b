"""Many variants of a scenario: in parallel, each once, resumable."""

from perfmodel.sweep.answers import FIGURES, Answer, answer
from perfmodel.sweep.run import Swept, run_sweep
from perfmodel.sweep.store import Store
from perfmodel.sweep.variants import Variant, variants

__all__ = ["FIGURES", "Answer", "Store", "Swept", "Variant", "answer", "run_sweep", "variants"]

"""Write down what four processes send in each pipeline case, so that the suite runs but two.

``python -P -m tests.training.recorded.record_pipeline`` writes ``pipeline.json``: by schedule, for
each rank its messages in order, as operation, peer and bytes.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.training.recorded.run_cases import Call, run_cases

FILE = Path(__file__).with_name("pipeline.json")
RANKS = 4

Messages = list[tuple[str, int, int]]
"""Operation, peer, bytes."""


def by_rank(calls: list[Call], ranks: int) -> list[Messages]:
    """Messages of each rank in the order in which it posts them."""
    messages: list[Messages] = [[] for _ in range(ranks)]
    for call in calls:
        _, rank, _, peer = call.phase.split()
        assert call.op in ("send", "recv")
        assert call.dtype == "float32"
        messages[int(rank)].append((call.op, int(peer), call.nbytes))
    return messages


def compact(messages: Messages) -> str:
    return " ".join(f"{op}:{peer}:{nbytes}" for op, peer, nbytes in messages)


def expand(text: str) -> Messages:
    parts = (part.split(":") for part in text.split())
    return [(op, int(peer), int(nbytes)) for op, peer, nbytes in parts]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        recorded = run_cases("tests.training.recorded.pipeline_cases", RANKS, Path(folder))
    kinds = {kind: list(map(compact, by_rank(each, RANKS))) for kind, each in recorded.items()}
    FILE.write_text(json.dumps(kinds, indent=0) + "\n", encoding="utf-8")

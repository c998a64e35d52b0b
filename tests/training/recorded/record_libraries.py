"""Record what DeepSpeed and Megatron-Core call, for tests without them.

``python -m tests.training.recorded.record_libraries NAME ...`` where they are installed: README.md
says how.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.training.recorded.run_cases import Call, run_cases

LIBRARIES = {
    "deepspeed": ("deepspeed", "step 3"),
    "megatron": ("megatron-core", "step 2"),
    "megatron_fsdp": ("megatron-core", "step 2"),
    "megatron_tensor": ("megatron-core", "step 2"),
    "torchao": ("torchao", "step 1"),
    "torchrec": ("torchrec", "step 1"),
    "onebit": ("deepspeed 0.14.5", "last round"),
}
"""Package of each (its version where only sources are needed), and the first step that goes as all
that follow."""


def main(names: list[str]) -> None:
    """Write NAME.json beside this file for each library."""
    for name in names:
        package, phase = LIBRARIES[name]
        module = f"tests.training.recorded.{name}_cases"
        cases: dict[str, Any] = {
            case: {**settings, "calls": {}, "bytes": {}}
            for case, settings in importlib.import_module(module).SETTINGS.items()
        }
        for ranks in (2, 4):
            with tempfile.TemporaryDirectory() as folder:
                recorded = run_cases(module, ranks, Path(folder))
            for case, calls in recorded.items():
                cases[case]["calls"][ranks] = [_row(call) for call in calls if phase in call.phase]
                cases[case]["bytes"][ranks] = {
                    call.op: call.nbytes for call in calls if call.phase == "memory"
                }
        lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(row)}" for case, row in cases.items())
        library = package if " " in package else f"{package} {version(package)}"
        versions = {"library": library, "torch": version("torch")}
        head = json.dumps(versions)[:-1]
        text = f'{head}, "cases": {{\n{lines}\n}}}}\n'
        Path(__file__).with_name(f"{name}.json").write_text(text, encoding="utf-8")


def _row(call: Call) -> list[Any]:
    phase = call.phase.partition(" ")[2].partition(" ")[2]
    return [call.op.removesuffix("_coalesced"), call.nbytes, call.group_ranks, call.dtype, phase]


if __name__ == "__main__":
    main(sys.argv[1:])

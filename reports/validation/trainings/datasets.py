"""All tables of trainings and steps that a folder of records holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perfmodel.errors import Fault, InputError
from reports.validation.trainings.llm_steps import llm_datasets
from reports.validation.trainings.model import Dataset
from reports.validation.trainings.published import (
    ddp_benchmark_dataset,
    published_datasets,
    single_dataset,
)
from reports.validation.trainings.testbed import gloo_dataset

LLM_STEPS = "llm_steps.csv"
"""Steps of language models on one GPU."""
STEPS = "ddp*_iters.csv"
"""Tables of steps over shaped links."""


def datasets_in(folder: Path) -> list[Dataset]:
    """Predict the trainings of a folder laid out like the shipped records.

    ``testbed/ddp*_iters.csv`` with ``models.csv`` and ``linkcal*.csv`` (or these in the folder
    itself); ``training/*.csv``;
    ``ddp/pytorch_ddp_benchmark.csv``; ``single_gpu.csv``; ``llm_steps.csv``. What is not there is
    left out.

    Raises
    ------
    InputError
        Every fault of every table.
    """
    faults: list[Fault] = []
    readers: tuple[tuple[Path, Callable[[Path, list[Fault]], list[Dataset]]], ...] = (
        (testbed_folder(folder), lambda path, faults: _one(gloo_dataset(path, faults))),
        (folder / "single_gpu.csv", lambda path, faults: _one(single_dataset(path, faults))),
        (folder / LLM_STEPS, llm_datasets),
        (
            folder / "ddp" / "pytorch_ddp_benchmark.csv",
            lambda path, faults: _one(ddp_benchmark_dataset(path, faults)),
        ),
        (folder / "training", published_datasets),
    )
    datasets: list[Dataset] = []
    for path, reader in readers:
        with collect_table_faults(path, faults):
            datasets += reader(path, faults) if path.exists() else []
    if faults:
        raise InputError(faults)
    return datasets


@contextmanager
def collect_table_faults(path: Path, faults: list[Fault]) -> Iterator[None]:
    """Turn a column that is missing, and a cell that is no number, into faults of the table."""
    try:
        yield
    except KeyError as error:
        faults.append(Fault(str(error.args[0]), "no such column", "this column", str(path)))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        faults.append(Fault("a cell", str(error), "a number where one belongs", str(path)))


def testbed_folder(folder: Path) -> Path:
    """Where steps over shaped links stand: in ``testbed/``, or in the folder itself."""
    inside = folder / "testbed"
    return inside if inside.is_dir() or not any(folder.glob(STEPS)) else folder


def has_trainings(folder: Path) -> bool:
    """Whether a folder has any table of trainings."""
    return any(testbed_folder(folder).glob(STEPS)) or any(
        (folder / name).exists()
        for name in ("training", "single_gpu.csv", LLM_STEPS, "ddp/pytorch_ddp_benchmark.csv")
    )


def _one(dataset: Dataset | None) -> list[Dataset]:
    return [] if dataset is None else [dataset]

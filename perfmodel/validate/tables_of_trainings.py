"""All tables of trainings and steps that a folder of records holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.validate.published import ddp_benchmark_dataset, published_datasets
from perfmodel.validate.single import single_dataset
from perfmodel.validate.testbed import gloo_dataset
from perfmodel.validate.trainings import Dataset


def datasets_in(folder: Path) -> list[Dataset]:
    """Predict the trainings of a folder laid out like the shipped records.

    ``testbed/ddp*_iters.csv`` with ``models.csv`` and ``linkcal*.csv``; ``training/*.csv``;
    ``ddp/pytorch_ddp_benchmark.csv``; ``single_gpu.csv``. What is not there is left out.

    Raises
    ------
    InputError
        Every fault of every table.
    """
    faults: list[Fault] = []
    readers: tuple[tuple[Path, Callable[[Path, list[Fault]], list[Dataset]]], ...] = (
        (folder / "testbed", lambda path, found: _one(gloo_dataset(path, found))),
        (folder / "single_gpu.csv", lambda path, found: _one(single_dataset(path, found))),
        (
            folder / "ddp" / "pytorch_ddp_benchmark.csv",
            lambda path, found: _one(ddp_benchmark_dataset(path, found)),
        ),
        (folder / "training", published_datasets),
    )
    datasets: list[Dataset] = []
    for path, reader in readers:
        try:
            datasets += reader(path, faults) if path.exists() else []
        except KeyError as error:
            faults.append(Fault(str(error.args[0]), "no such column", "this column", str(path)))
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            faults.append(Fault("a cell", str(error), "a number where one belongs", str(path)))
    if faults:
        raise InputError(faults)
    return datasets


def _one(dataset: Dataset | None) -> list[Dataset]:
    return [] if dataset is None else [dataset]

"""Run the variants of a sweep: what is known is looked up, the rest is worked out and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.calibrate import Profile
from perfmodel.scenario import Scenario
from perfmodel.studies.sweep.cache_key import make_key, model_version, profile_digest
from perfmodel.studies.sweep.executor import check_backend, map_unordered
from perfmodel.studies.sweep.store import Store
from perfmodel.studies.sweep.variants import Variant
from perfmodel.studies.sweep.worker import FIGURES, Answer, answer

if TYPE_CHECKING:
    import pandas as pd


Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Swept:
    """A sweep that was run.

    Parameters
    ----------
    variants : tuple of Variant
    answers : tuple of Answer
        One for each variant.
    reused : int
        How many answers the store had already.
    """

    variants: tuple[Variant, ...]
    answers: tuple[Answer, ...]
    reused: int = 0

    @property
    def failed(self) -> int:
        """How many variants have no answer."""
        return sum(answer.status == "failed" for answer in self.answers)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that the sweep sets."""
        return tuple(dict.fromkeys(name for variant in self.variants for name in variant.set))

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """One mapping per variant: the set fields, then the columns of `Answer`."""
        return tuple(
            {name: variant.set.get(name) for name in self.fields} | answer_found.as_row
            for variant, answer_found in zip(self.variants, self.answers, strict=True)
        )

    @property
    def table(self) -> pd.DataFrame:
        """One row per variant, indexed by its number; units in the column names."""
        import pandas as pd

        columns = [*self.fields, *FIGURES, "status", "message"]
        index = pd.Index([variant.index for variant in self.variants], name="variant")
        return pd.DataFrame(list(self.rows), columns=columns, index=index)


def run_sweep(
    variants: Sequence[Variant],
    *,
    jobs: int | None = None,
    backend: str = "loky",
    scheduler: str | None = None,
    store: str | Path | None = None,
    profile: Profile | None = None,
    progress: Progress | None = None,
) -> Swept:
    """Answer all variants, each question once; the same bits whatever the number of workers.

    Parameters
    ----------
    variants : sequence of Variant
        See `perfmodel.studies.sweep.variants`.
    jobs : int, optional
        Processes; 1 stays in this one. Default: one per physical core.
    backend : {"loky", "dask", "ray"}
    scheduler : str, optional
        Address of a dask or ray cluster.
    store : str or Path, optional
        File that answers are looked up in and kept in as they come.
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    progress : callable, optional
        Called with (variants done, variants in all).

    Raises
    ------
    InputError
        A backend or a store that cannot be used.
    SweepError
        A worker was killed.
    """
    backend_name = check_backend(backend, scheduler, jobs)
    keys = _make_keys(variants, profile, stored=store is not None)
    first = dict(reversed(list(zip(keys, variants, strict=True))))
    with Store(Path(store)) if store is not None else nullcontext() as storage:
        answers = storage.find(first) if storage is not None else {}
        reused = sum(key in answers for key in keys)
        open_variants = [(key, variant) for key, variant in first.items() if key not in answers][
            ::-1
        ]
        for done, (key, answer_found) in enumerate(
            _answer_all(open_variants, profile, jobs, backend_name, scheduler), 1
        ):
            answers[key] = answer_found
            if storage is not None:
                storage.add(key, first[key].set, answer_found)
            if progress is not None:
                progress(len(variants) - len(open_variants) + done, len(variants))
    return Swept(tuple(variants), tuple(answers[key] for key in keys), reused)


def _make_keys(variants: Sequence[Variant], profile: Profile | None, *, stored: bool) -> list[str]:
    """Keys of the answers; in memory all are of this model."""
    files: dict[Path, str] = {}
    of_profile, version = profile_digest(profile), model_version() if stored else ""
    return [make_key(variant, of_profile, version, files) for variant in variants]


def _answer_all(
    open_variants: Sequence[tuple[str, Variant]],
    profile: Profile | None,
    jobs: int | None,
    *pool: Any,
) -> Iterator[tuple[str, Answer]]:
    calls = []
    for key, variant in open_variants:
        if variant.scenario is None:
            yield key, Answer("failed", variant.fault)
        else:
            calls.append((key, variant.scenario, profile))
    backend, scheduler = pool
    yield from map_unordered(
        _answer_with_key, calls, jobs=jobs, backend=backend, scheduler=scheduler
    )


def _answer_with_key(key: str, scenario: Scenario, profile: Profile | None) -> tuple[str, Answer]:
    return key, answer(scenario, profile)


def as_text(value: object) -> str:
    """Write a value of a set field as it could stand in a file."""
    import json

    return value if isinstance(value, str) else json.dumps(value)


def set_as_text(values: Mapping[str, Any]) -> str:
    """Write what a variant sets in one line: ``cluster.nodes=2, strategy.bucket_cap=1 MiB``."""
    return ", ".join(f"{name}={as_text(value)}" for name, value in values.items())

"""`run_sweep`: take the answers of variants from a store, compute the others and store them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import ExecutorUnavailable
from perfmodel.files import attributes, write_atomically
from perfmodel.scenario import Scenario
from perfmodel.studies.sweep.cache_key import make_key, model_version, profile_digest
from perfmodel.studies.sweep.executor import Backend, check_backend, map_unordered
from perfmodel.studies.sweep.store import FIGURES, Answer, Store, answer
from perfmodel.studies.sweep.variants import Variant

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.calibrate import Profile

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Result of a sweep.

    Parameters
    ----------
    variants : tuple of Variant
    answers : tuple of Answer
        One for each variant.
    reused : int
        Number of answers taken from the store.
    """

    variants: tuple[Variant, ...]
    answers: tuple[Answer, ...]
    reused: int = 0

    @property
    def failed(self) -> int:
        """Number of variants that failed."""
        return sum(answer.status == "failed" for answer in self.answers)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields that the sweep sets."""
        return tuple(dict.fromkeys(name for variant in self.variants for name in variant.set))

    @property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """One mapping per variant: the set fields, then the columns of `Answer`."""
        return tuple(
            {name: variant.set.get(name) for name in self.fields} | answer_of_variant.as_row
            for variant, answer_of_variant in zip(self.variants, self.answers, strict=True)
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
) -> SweepResult:
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
        File that answers are read from, and written to as they come.
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    progress : callable, optional
        Called with (variants done, all variants).

    Raises
    ------
    InputError
        A backend or a store that cannot be used.
    SweepError
        A worker was killed.
    """
    chosen = check_backend(backend, scheduler, jobs)
    keys = _make_keys(variants, profile, stored=store is not None)
    first = dict(reversed(list(zip(keys, variants, strict=True))))
    with Store(Path(store)) if store is not None else nullcontext() as storage:
        answers = storage.find(first) if storage is not None else {}
        reused = sum(key in answers for key in keys)
        missing = [(key, variant) for key, variant in first.items() if key not in answers][::-1]
        results = _answer_all(missing, profile, jobs, chosen, scheduler)
        for done, (key, result) in enumerate(results, 1):
            answers[key] = result
            if storage is not None:
                storage.add(key, first[key].set, result)
            if progress is not None:
                progress(len(variants) - len(missing) + done, len(variants))
    return SweepResult(tuple(variants), tuple(answers[key] for key in keys), reused)


def _make_keys(variants: Sequence[Variant], profile: Profile | None, *, stored: bool) -> list[str]:
    """Return the keys of the answers; the model's version matters in a store only."""
    files: dict[Path, str] = {}
    of_profile, version = profile_digest(profile), model_version() if stored else ""
    return [make_key(variant, of_profile, version, files) for variant in variants]


def _answer_all(
    variants: Sequence[tuple[str, Variant]],
    profile: Profile | None,
    jobs: int | None,
    backend: Backend,
    scheduler: str | None,
) -> Iterator[tuple[str, Answer]]:
    calls = []
    for key, variant in variants:
        if variant.scenario is None:
            yield key, Answer("failed", variant.fault)
        else:
            calls.append((key, variant.scenario, profile))
    yield from map_unordered(
        _answer_with_key, calls, jobs=jobs, backend=backend, scheduler=scheduler
    )


def _answer_with_key(key: str, scenario: Scenario, profile: Profile | None) -> tuple[str, Answer]:
    return key, answer(scenario, profile)


def format_value(value: object) -> str:
    """Format a value of a set field as in a file."""
    import json

    return value if isinstance(value, str) else json.dumps(value)


def format_fields(values: Mapping[str, Any]) -> str:
    """Format set fields in one line: ``cluster.nodes=2, strategy.bucket_cap=1 MiB``."""
    return ", ".join(f"{name}={format_value(value)}" for name, value in values.items())


# ---------------------------------------------------------------- CSV, Parquet and JSON of a sweep


def flatten(swept: SweepResult) -> pd.DataFrame:
    """Return the table with set fields as columns of one plain type, else as text."""
    table = swept.table
    for name in swept.fields:
        values = [variant.set.get(name) for variant in swept.variants]
        kinds = {type(value) for value in values if value is not None}
        if kinds == {int, float}:
            table[name] = [None if value is None else float(value) for value in values]
        elif len(kinds) > 1 or not kinds <= {str, int, float, bool}:
            table[name] = [None if value is None else format_value(value) for value in values]
    return table


def write_csv(swept: SweepResult, path: Path) -> None:
    """Write one row per variant; floats so that reading them gives the same bits."""
    write_atomically(path, flatten(swept).to_csv(lineterminator="\n"))


def check_parquet() -> None:
    """Check before the sweep that Parquet can be written after it.

    Raises `ExecutorUnavailable`: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401  (an extra)
    except ImportError:
        raise ExecutorUnavailable(
            "--parquet needs pyarrow: pip install 'perfmodel[parquet]'"
        ) from None


def write_parquet(swept: SweepResult, path: Path) -> None:
    """Write one row per variant.

    Raises `ExecutorUnavailable`: pyarrow is not installed.
    """
    check_parquet()
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    content = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(flatten(swept)), content)
    write_atomically(path, content.getvalue())


def to_json(name: str, question: str, swept: SweepResult) -> dict[str, Any]:
    """Write a sweep as plain data: what was set, and figures in SI units, variant by variant."""
    return {
        "scenario": name,
        "question": question,
        "fields": list(swept.fields),
        "count": len(swept.variants),
        **attributes(swept, "failed reused"),
        "variants": [
            attributes(variant, "index set digest") | answer.as_row
            for variant, answer in zip(swept.variants, swept.answers, strict=True)
        ],
    }

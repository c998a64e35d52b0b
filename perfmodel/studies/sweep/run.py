"""`run_sweep`: take the answers of variants from a store, compute the others and store them.

The key of a stored answer is a digest of scenario, files that it names, profile and model version.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import ExecutorUnavailable, InputError
from perfmodel.files import attributes, data_folder, find_file, is_folder, write_atomically
from perfmodel.files.find import is_shipped
from perfmodel.memo import with_progress
from perfmodel.scenario import ModelSection, Scenario
from perfmodel.scenario.source_map import SourceMap, format_value
from perfmodel.studies.run.resolve.machine import named_node
from perfmodel.studies.sweep.executor import check_backend, map_unordered
from perfmodel.studies.sweep.store import FIGURES, Answer, Store, answer, without_ends
from perfmodel.studies.sweep.variants import Variant
from perfmodel.topology.composed.load import node_files
from perfmodel.topology.templates.gpus import user_tables
from perfmodel.version import __version__
from perfmodel.workload.configs.file_text import CONFIG_NAME, is_argument_file
from perfmodel.workload.configs.safetensors import INDEX_SUFFIX, SUFFIX, header_bytes

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
        none = dict.fromkeys(self.fields)
        return tuple(
            none | dict(variant.set) | answer_of_variant.as_row
            for variant, answer_of_variant in zip(self.variants, self.answers, strict=True)
        )

    @property
    def table(self) -> pd.DataFrame:
        """One row per variant, indexed by its number; units in the column names."""
        import pandas as pd

        return pd.DataFrame(
            list(self.rows),
            columns=[*self.fields, *FIGURES, "status", "message"],
            index=pd.Index([variant.index for variant in self.variants], name="variant"),
        )


STEP = "step of "
"""Beginning of the keys of answers without ends."""


def run_sweep(
    variants: Sequence[Variant],
    *,
    jobs: int | None = None,
    backend: str = "loky",
    scheduler: str | None = None,
    store: str | Path | None = None,
    profile: Profile | None = None,
    progress: Progress | None = None,
    with_ends: bool = True,
    before: dict[str, Answer] | None = None,
) -> SweepResult:
    """Answer all variants, each question once; the same bits whatever the number of workers.

    Parameters
    ----------
    variants : sequence of Variant
        See `perfmodel.studies.sweep.variants`.
    jobs : int, optional
        Processes; 1 stays in this one. Default: one per physical core, for what is worth them.
    backend : {"loky", "dask", "ray"}
    scheduler : str, optional
        Address of a dask or ray cluster.
    store : str or Path, optional
        File that answers are read from, and written to as they come.
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    progress : callable, optional
        Called with (variants done, all variants).
    with_ends : bool
        Whether answers have intervals and bottlenecks, which take ten times as long as a step.
    before : dict, optional
        Answers of sweeps before this one with the same profile, by key, which it extends.

    Raises
    ------
    InputError
        A backend or a store that cannot be used.
    SweepError
        Workers were killed, again and again at the same variants.
    """
    chosen = check_backend(backend, scheduler, jobs)
    # The model's version matters in a store only; each file is read once for all variants.
    version, files = "" if store is None else model_version(), dict[Path, str]()
    of_profile = "" if profile is None else _digest(profile.model_dump_json())
    keys = [
        ("" if with_ends else STEP) + make_key(variant, of_profile, version, files)
        for variant in variants
    ]
    first = dict(reversed(list(zip(keys, variants, strict=True))))
    with Store(Path(store)) if store is not None else nullcontext() as storage:
        answers = storage.find(first) if storage is not None else {}
        reused = sum(key in answers for key in keys)
        answers |= {key: each for key, each in (before or {}).items() if key in first}
        missing = [(key, variant) for key, variant in first.items() if key not in answers][::-1]
        calls = [(key, each.scenario, profile, with_ends) for key, each in missing if each.scenario]
        results = map_unordered(
            _answer_with_key, calls, jobs=jobs, backend=chosen, scheduler=scheduler
        )
        failed = [(key, Answer("failed", v.fault)) for key, v in missing if v.scenario is None]
        known = len(variants) - len(missing)
        for key, result in with_progress(chain(failed, results), progress, len(variants), known):
            answers[key] = result
            if storage is not None:
                storage.add(key, first[key].set, result)
    if before is not None:
        whole = [(key, each) for key, each in answers.items() if with_ends and each.status == "ok"]
        before |= answers | {STEP + key: without_ends(each) for key, each in whole}
    return SweepResult(tuple(variants), tuple(answers[key] for key in keys), reused)


def _answer_with_key(
    key: str, scenario: Scenario, profile: Profile | None, with_ends: bool
) -> tuple[str, Answer]:
    return key, answer(scenario, profile, with_ends=with_ends)


# ---------------------------------------------------------------- keys of stored answers

NOT_MODEL = (
    "cli/",
    "report/",
    "validate/",
    "studies/plan/",
    "studies/tune/",
    "studies/compare.py",
    "studies/comparison.py",
    "_data/",
)
"""Folders that a step time cannot depend on: nothing that `studies.run` imports lies in them."""


@cache
def model_version() -> str:
    """Return the package's version and a digest of source and data that an answer depends on.

    So answers of an older model are never reused.
    """
    digest = hashlib.sha256()
    for folder, root, left_out in (
        ("package", Path(__file__).parents[2], NOT_MODEL),
        ("topologies", data_folder("topologies"), ()),
    ):
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root).as_posix()
            is_read = path.suffix in {".py", ".yaml", ".csv", ".json"} and path.is_file()
            if is_read and not inside.startswith(left_out):
                digest.update(f"{folder}/{inside}\0{_digest_file(path)}\0".encode())
    return f"{__version__}+{digest.hexdigest()[:16]}"


def make_key(
    variant: Variant, profile: str, version: str, digests: dict[Path, str] | None = None
) -> str:
    """Return the key of a variant's answer.

    `profile`: digest of its numbers; "" without one.
    `version`: `model_version`.
    `digests`: digests of files, extended here, so that many variants read each file once.
    """
    known = {} if digests is None else digests
    named = () if variant.scenario is None else list_files(variant.scenario)
    paths = {field: path for field, path in named if path.is_file()}
    for path in set(paths.values()) - known.keys():
        known[path] = "" if is_shipped(path) else _digest_file(path)
    # Files that ship are part of the model's version.
    question = {
        "question": variant.digest,
        "files": {field: known[path] for field, path in paths.items() if known[path]},
        "profile": profile,
        "model": version,
    }
    return _digest(json.dumps(question, sort_keys=True))


def list_files(scenario: Scenario) -> Iterator[tuple[str, Path]]:
    """List the files that a scenario names, or that its machine may come from, by field."""
    origin, cluster = scenario.origin, scenario.cluster
    for number, path in enumerate(node_files(named_node(scenario))):
        yield f"cluster.node{f' extends {number}' if number else ''}", path
    if scenario.profile is not None:
        name = origin.beside("profile", scenario.profile)
        yield from _locate("profile", name, "topologies/profiles")
    if cluster.fabric is not None:
        kind = cluster.fabric.kind
        if kind.endswith((".yaml", ".yml")):
            name = origin.beside("cluster.fabric", kind)
            yield from _locate("cluster.fabric", name, "topologies")
        yield "cluster.fabric.kind", Path("topologies") / "fabrics" / f"{kind}.yaml"
    yield from ((f"gpus of {path.parent}/{path.name}", path) for path in user_tables())
    yield from _model_files("model", scenario.model, origin)
    for number, job in enumerate(scenario.jobs):
        yield from _model_files(f"jobs.{number}.model", job.model, origin)
    if scenario.compute.times is not None:
        yield "compute.times", origin.resolve("compute.times", scenario.compute.times)


def _model_files(field: str, model: ModelSection, origin: SourceMap) -> Iterator[tuple[str, Path]]:
    """List the files that state a model; a name of the zoo is one of a file that ships."""
    if model.file is not None:
        path = origin.resolve(f"{field}.file", model.file)
        yield f"{field}.file", path
        if path.name.endswith(INDEX_SUFFIX):
            yield from (
                (f"{field}.file {shard.name}", shard)
                for shard in sorted(path.parent.glob(f"*{SUFFIX}"))
            )
    elif model.config is not None:
        path = origin.resolve(f"{field}.config", model.config)
        yield f"{field}.config", path / CONFIG_NAME if is_folder(path) else path
    elif model.megatron is not None:
        if is_argument_file(model.megatron):
            yield f"{field}.megatron", origin.resolve(f"{field}.megatron", model.megatron)
    elif model.transformer is None and model.name is not None:
        yield f"{field}.name", Path(model.name)


def _locate(field: str, name: str, kind: str) -> Iterator[tuple[str, Path]]:
    with suppress(InputError):  # the answer will say so
        yield field, find_file(name, kind)


def _digest_file(path: Path) -> str:
    try:  # a file of weights has many GB, of which a model is the header
        return _digest(header_bytes(path) if path.name.endswith(SUFFIX) else path.read_bytes())
    except InputError as error:  # the answer will say so, too
        return _digest(str(error))


def _digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


# ---------------------------------------------------------------- CSV, Parquet and JSON of a sweep


def flatten(swept: SweepResult) -> pd.DataFrame:
    """Return the table with set fields as columns of one plain type, else as text."""
    table = swept.table
    for name in swept.fields:
        values = [variant.set.get(name) for variant in swept.variants]
        kinds = {type(value) for value in values if value is not None}
        is_plain = len(kinds) <= 1 and kinds <= {str, int, float, bool}
        write = float if kinds == {int, float} else format_value
        if not is_plain:
            table[name] = [None if value is None else write(value) for value in values]
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

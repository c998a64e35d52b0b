"""Key of a stored answer: a digest of scenario, files that it names, profile and model version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.errors import InputError
from perfmodel.files import data_folder, find_file, is_folder
from perfmodel.files.find import is_shipped
from perfmodel.scenario import ModelSection, Scenario
from perfmodel.scenario.source_map import SourceMap
from perfmodel.studies.run.resolve.machine import named_node
from perfmodel.studies.sweep.variants import Variant
from perfmodel.topology.composed.load import node_files
from perfmodel.topology.templates.gpus import user_tables
from perfmodel.version import __version__
from perfmodel.workload.configs.file_text import CONFIG_NAME, is_argument_file
from perfmodel.workload.configs.safetensors import INDEX_SUFFIX, SUFFIX, header_bytes

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

NOT_MODEL = (
    "cli/",
    "report/",
    "validate/",
    "studies/plan/",
    "studies/tune/",
    "studies/compare/",
    "_data/",
)
"""Folders that a step time cannot depend on: nothing that `studies.run` imports lies in them."""


@cache
def model_version() -> str:
    """Return the package's version and a digest of source and data that an answer depends on.

    So answers of an older model are never reused.
    """
    package = Path(__file__).parents[2]
    topologies = data_folder("topologies")
    digest = hashlib.sha256()
    for root in (package, topologies):
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root)
            own = root == package
            skipped = own and inside.as_posix().startswith(NOT_MODEL)
            if path.is_file() and path.suffix in {".py", ".yaml", ".csv", ".json"} and not skipped:
                name = f"{'package' if own else 'topologies'}/{inside.as_posix()}"
                digest.update(f"{name}\0{_digest_file(path)}\0".encode())
    return f"{__version__}+{digest.hexdigest()[:16]}"


def profile_digest(profile: Profile | None) -> str:
    """Digest of a profile's numbers; "" without one."""
    return "" if profile is None else _digest_text(profile.model_dump_json())


def make_key(
    variant: Variant, profile: str, version: str, digests: dict[Path, str] | None = None
) -> str:
    """Return the key of a variant's answer.

    `profile`: `profile_digest`.
    `version`: `model_version`.
    `digests`: digests of files, extended here, so that many variants read each file once.
    """
    files = {} if variant.scenario is None else _digest_files(variant.scenario, digests)
    question = {"question": variant.digest, "files": files, "profile": profile, "model": version}
    return _digest_text(json.dumps(question, sort_keys=True))


def _digest_files(scenario: Scenario, digests: dict[Path, str] | None) -> Mapping[str, str]:
    """Return the digest of every user's file that the scenario names, by field."""
    digests = {} if digests is None else digests
    contents = {}
    for field, path in list_files(scenario):
        if not path.is_file():
            continue
        if path not in digests:
            digests[path] = "" if is_shipped(path) else _digest_file(path)
        if digests[path]:  # those that ship are part of the model's version
            contents[field] = digests[path]
    return contents


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
            yield from _locate(
                "cluster.fabric", origin.beside("cluster.fabric", kind), "topologies"
            )
        yield "cluster.fabric.kind", Path("topologies") / "fabrics" / f"{kind}.yaml"
    for path in user_tables():
        yield f"gpus of {path.parent}/{path.name}", path
    models = [("model", scenario.model)]
    models += [(f"jobs.{at}.model", job.model) for at, job in enumerate(scenario.jobs)]
    for field, model in models:
        yield from _model_files(field, model, origin)
    if scenario.compute.times is not None:
        yield "compute.times", origin.resolve("compute.times", scenario.compute.times)


def _model_files(field: str, model: ModelSection, origin: SourceMap) -> Iterator[tuple[str, Path]]:
    """List the files that state a model; a name of the zoo is one of a file that ships."""
    if model.file is not None:
        path = origin.resolve(f"{field}.file", model.file)
        yield f"{field}.file", path
        if path.name.endswith(INDEX_SUFFIX):
            shards = sorted(path.parent.glob(f"*{SUFFIX}"))
            yield from ((f"{field}.file {shard.name}", shard) for shard in shards)
    elif model.config is not None:
        path = origin.resolve(f"{field}.config", model.config)
        yield f"{field}.config", path / CONFIG_NAME if is_folder(path) else path
    elif model.megatron is not None:
        if is_argument_file(model.megatron):
            yield f"{field}.megatron", origin.resolve(f"{field}.megatron", model.megatron)
    elif model.transformer is None and model.name is not None:
        yield f"{field}.name", Path(model.name)


def _locate(field: str, name: str, kind: str) -> Iterator[tuple[str, Path]]:
    try:
        yield field, find_file(name, kind)
    except InputError:
        return  # the answer will say so


def _digest_file(path: Path) -> str:
    if path.name.endswith(SUFFIX):  # of many GB, of which a model is the header
        try:
            return hashlib.sha256(header_bytes(path)).hexdigest()
        except InputError as error:  # the answer will say so, too
            return _digest_text(str(error))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

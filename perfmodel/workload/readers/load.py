"""A model by name, from a user's own file, or as section ``model`` of a scenario states it.

The readers' contracts take as long to load as a small run to simulate: each is where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError, allowed_names, raise_faults
from perfmodel.files import is_file, is_folder, path_of
from perfmodel.scenario.sections.model import ModelSection
from perfmodel.workload.model import Workload
from perfmodel.workload.shard import WHOLE, Shard, shard_faults, whole_faults
from perfmodel.workload.zoo import zoo_model, zoo_names
from perfmodel.workload.zoo.buildable import Buildable, build
from perfmodel.workload.zoo.expert_settings import ExpertSettings

if TYPE_CHECKING:
    from perfmodel.workload.configs.file_text import JsonFile


def load_workload(
    model: str | Buildable,
    *,
    dtype: str | None = None,
    image_size: int | None = None,
    sequence_length: int | None = None,
    shard: Shard = WHOLE,
    experts: ExpertSettings | None = None,
) -> Workload:
    """Return a model of the zoo or one from a file.

    Parameters
    ----------
    model : str or Buildable
        A name from `zoo_names`; the path of a ``.csv``, ``.yaml`` or ``.json`` file of parameters,
        of Hugging Face's ``config.json`` or its folder, or of a ``.safetensors`` file or its index;
        or what `configs.hugging_face.read_config` returns.
    dtype, image_size, sequence_length
        For models of the zoo and those that a configuration describes (see `build_model`); a file
        of parameters states its own.
    shard : Shard
        Which part of it one rank holds. A file of parameters does not state how its layers split.
    experts : ExpertSettings, optional
        How experts run, for models that have some.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        Neither a name nor a file, or every fault of the file.
    """
    zoo_arguments: dict[str, Any] = {
        "dtype": dtype,
        "image_size": image_size,
        "sequence_length": sequence_length,
        "experts": experts,
    }
    stated = model if isinstance(model, Buildable) else _find_model(model)
    if isinstance(stated, Buildable):
        return build(stated, shard=shard, **zoo_arguments)
    faults = [
        Fault(field, repr(value), "nothing beside a model file, which states its own")
        for field, value in zoo_arguments.items()
        if value is not None
    ]
    whole = whole_faults(shard, str(model), "a model file does not state how its layers split")
    raise_faults(faults + (shard_faults(shard) or whole))
    from perfmodel.workload.readers.parameter_file import read_model

    return read_model(stated)


def _find_model(name: str) -> Buildable | Path:
    """Return a model of the zoo, or of a configuration, or the path of a file of parameters.

    Raises `InputError`: it is none.
    """
    model = zoo_model(name)
    if model is not None:
        return model
    from perfmodel.workload.configs.file_text import CONFIG_NAME
    from perfmodel.workload.configs.hugging_face import config_model, read_config

    path = path_of(name)
    if is_folder(path) and is_file(path / CONFIG_NAME):
        return read_config(path)
    if not is_file(path):
        raise InputError(_missing_fault(name, path))
    document = _read_config_file(path)
    return path if document is None else config_model(document)


def _read_config_file(path: Path) -> JsonFile | None:
    """Read a file that is one of Hugging Face's configurations, and not of parameters.

    Raises `InputError`: one by its name that is no JSON.
    """
    from perfmodel.workload.configs.file_text import CONFIG_NAME, read_json
    from perfmodel.workload.configs.safetensors import is_safetensors

    if path.suffix.lower() != ".json" or is_safetensors(path):
        return None
    try:
        document = read_json(path, infinite=True)
    except InputError:
        if path.name == CONFIG_NAME:
            raise
        return None
    fields = document.content
    is_config = "parameters" not in fields and {"model_type", "architectures"} & set(fields)
    return document if is_config else None


def _missing_fault(name: str, path: Path) -> Fault:
    from perfmodel.workload.readers.parameter_file import FILE_SUFFIXES

    if is_folder(path):
        allowed = "a file, or a folder with a config.json of Hugging Face"
        return Fault("model", f"{name!r}, a folder without config.json", allowed)
    if path.suffix.lower() in FILE_SUFFIXES or os.sep in name:
        return Fault("model", f"{name!r}, which is no readable file", "a parameter file's path")
    allowed = f"{allowed_names(zoo_names(), name)}, or a parameter file's path"
    return Fault("model", repr(name), allowed)


def section_model(section: ModelSection, resolve: Callable[[str, str], Path]) -> str | Buildable:
    """Return what a section states: a name of the zoo, the path of a file, or a model.

    `resolve`: the path of a file named in a field of the section.
    Raises `InputError`: faults of a field start with its name ("transformer.heads").
    """
    if section.file is not None:
        return str(resolve("file", section.file))
    if section.config is not None:
        from perfmodel.workload.configs.hugging_face import read_config

        return read_config(resolve("config", section.config), section.name)
    if section.transformer is not None:
        from perfmodel.workload.configs.decoder_models import transformer_model

        try:
            return transformer_model(section.transformer, section.name)
        except InputError as error:
            raise InputError(
                [replace(each, field=f"transformer.{each.field}") for each in error.faults]
            ) from None
    if section.megatron is not None:
        from perfmodel.workload.configs.file_text import is_argument_file
        from perfmodel.workload.configs.megatron_arguments import megatron_model

        is_file_named = is_argument_file(section.megatron)
        stated = resolve("megatron", section.megatron) if is_file_named else section.megatron
        return megatron_model(stated, section.name)
    return section.name or ""

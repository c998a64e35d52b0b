"""The model of a scenario's section ``model``, from whichever of its fields states it.

The readers' contracts take as long to load as a small run to simulate: each is where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from perfmodel.errors import InputError
from perfmodel.scenario.sections.model import ModelSection
from perfmodel.workload.zoo.buildable import Buildable


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
            faults = [replace(each, field=f"transformer.{each.field}") for each in error.faults]
            raise InputError(faults) from None
    if section.megatron is not None:
        from perfmodel.workload.configs.argument_text import is_argument_file
        from perfmodel.workload.configs.megatron_arguments import megatron_model

        stated: str | Path = section.megatron
        if is_argument_file(section.megatron):
            stated = resolve("megatron", section.megatron)
        return megatron_model(stated, section.name)
    return section.name or ""

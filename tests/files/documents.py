"""A small schema, documents of it, and their faults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from perfmodel.errors import Fault, InputError
from perfmodel.files import (
    Bandwidth,
    Bytes,
    Count,
    FileModel,
    FlopRate,
    Seconds,
    load_document,
)


class Cat(FileModel):
    kind: Literal["cat"]
    lives: Count = 9


class Dog(FileModel):
    kind: Literal["dog"]
    bark: str = "wuff"


class Example(FileModel):
    size: Bytes
    speed: Bandwidth = 1.0
    delay: Seconds = 0.0
    compute: FlopRate = 1.0
    ratio: float = 1.0
    items: tuple[Count, ...] = ()
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None


def write(folder: Path, text: str, name: str = "x.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(folder: Path, text: str) -> tuple[Fault, ...]:
    with pytest.raises(InputError) as caught:
        load_document(Example, write(folder, text))
    return caught.value.faults

"""Types of fields that are quantities."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from perfmodel.errors import InputError
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


def write(tmp_path, text, name="x.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(tmp_path, text):
    with pytest.raises(InputError) as caught:
        load_document(Example, write(tmp_path, text))
    return caught.value.faults


def test_quantities_are_read_into_si(tmp_path):
    text = "size: 25 MiB\nspeed: 400 Gbit/s\ndelay: 0 s\ncompute: 312 TFLOP/s\n"
    spec = load_document(Example, write(tmp_path, text))
    assert (spec.size, spec.speed, spec.delay, spec.compute) == (25 * 2**20, 50e9, 0, 312e12)


@pytest.mark.parametrize("value", ["true", "'4'", "4.5", "null", "-1", "1e400"])
def test_a_count_is_a_whole_number_above_zero(tmp_path, value):
    (fault,) = faults_of(tmp_path, f"size: 1 B\nitems: [{value}]\n")
    assert fault.field == "items.0"
    assert fault.line == 2

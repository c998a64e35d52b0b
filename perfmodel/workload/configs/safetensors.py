"""Tensors of a model from the headers of safetensors files; their weights are not read.

A header is 8 bytes of length, then JSON: by name dtype, shape and place. Files are sorted by name,
not by registration, and state no work.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, raise_faults, refuse_if
from perfmodel.files import is_file
from perfmodel.files.read import LARGEST_BYTES
from perfmodel.workload.configs.file_text import JsonFile, parse_json, read_json
from perfmodel.workload.model import Layer, ParameterTensor, Workload
from perfmodel.workload.readers.csv_tables import MOST_ELEMENTS, TRAINABLE, list_first

SUFFIX, INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"
ORDER_NOTE = (
    "safetensors files are sorted by name: gradients may get ready in another order than the "
    "reverse of names, counted numbers in order, that is taken here."
)

DTYPES: Mapping[str, tuple[str, int]] = {
    "F64": ("fp64", 8),
    "F32": ("fp32", 4),
    "BF16": ("bf16", 2),
    "F16": ("fp16", 2),
    "F8_E4M3": ("fp8", 1),
    "F8_E5M2": ("fp8", 1),
    "I64": ("int64", 8),
    "U64": ("int64", 8),
    "I32": ("int32", 4),
    "U32": ("int32", 4),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("uint8", 1),
}
"""Dtypes of the format (huggingface/safetensors, README), and bytes of an element."""

LENGTH_BYTES = 8
MOST_FAULTS = 20


def is_safetensors(path: Path) -> bool:
    """Whether a path is named like a safetensors file or the index of some."""
    return path.name.lower().endswith((SUFFIX, INDEX_SUFFIX))


def read_safetensors(path: Path) -> Workload:
    """Read the tensors of a file, or of all that an index names.

    Raises `InputError`: with every fault.
    """
    shapes = (
        _read_index(path)
        if path.name.lower().endswith(INDEX_SUFFIX)
        else _tensors(read_header(path))
    )
    refuse_if(not shapes, "file", "no tensors", "a model's tensors", str(path))
    tensors = tuple(ParameterTensor(name, *shapes[name]) for name in sorted(shapes, key=_natural))
    trained = [index for index, tensor in enumerate(tensors) if tensor.dtype in TRAINABLE]
    title = path.name.removesuffix(INDEX_SUFFIX).removesuffix(SUFFIX)
    return Workload(
        name=path.resolve().parent.name if title == "model" else title,
        tensors=tensors,
        layers=tuple(Layer(tensors[index].name, (index,)) for index in trained),
        source=f"header of {path}",
        notes=(ORDER_NOTE,),
    )


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Key that sorts numbers in names by what they count."""
    return [
        (part.isdigit(), int(part) if part.isdigit() else 0, "" if part.isdigit() else part)
        for part in re.split(r"(\d{1,18})", name)
    ]


def header_bytes(path: Path) -> bytes:
    """Read the length and the header of a file, and nothing behind.

    Raises `InputError`: it is none, or its header is beyond the bounds.
    """
    try:
        refuse_if(not is_file(path), "file", "no readable file", "a safetensors file", str(path))
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(LENGTH_BYTES)
            length = struct.unpack("<Q", start)[0] if len(start) == LENGTH_BYTES else 0
            refuse_if(
                not 2 <= length <= min(LARGEST_BYTES, size - LENGTH_BYTES),
                "file",
                f"a header of {length:,} bytes in a file of {size:,}",
                f"a safetensors file, with a header of at most {LARGEST_BYTES:,} bytes",
                str(path),
            )
            return start + stream.read(length)
    except OSError as error:
        raise InputError(
            Fault("file", error.strerror or str(error), "a readable file", str(path))
        ) from None


def read_header(path: Path) -> JsonFile:
    """Read the header of a file.

    Raises `InputError`: it is none.
    """
    try:
        text = header_bytes(path)[LENGTH_BYTES:].decode("utf-8")
    except UnicodeDecodeError:
        text = "a header that is not text"
        raise InputError(Fault("file", text, "a safetensors file", str(path))) from None
    return parse_json(text, path)


Entry = tuple[tuple[int, ...], str]
"""Shape and dtype."""


def _tensors(header: JsonFile) -> dict[str, Entry]:
    """Return shape and dtype of each tensor of a header.

    Raises `InputError`: entries that are none of a tensor, or over the bytes of another.
    """
    stated = {name: each for name, each in header.content.items() if name != "__metadata__"}
    faults = (
        Fault(f"tensor {name!r}", *problem, str(header.path))
        for name, fields in stated.items()
        if (problem := _problem(fields)) is not None
    )
    raise_faults(islice(faults, MOST_FAULTS))
    placed = sorted((fields["data_offsets"], name) for name, fields in stated.items())
    for (before, first), (place, name) in pairwise(placed):
        refuse_if(
            place[0] < before[1],
            f"tensor {name!r}",
            f"data_offsets {place}, within those of {first!r}",
            "bytes of its own for each tensor",
            str(header.path),
        )
    return {
        name: (tuple(fields["shape"]), DTYPES[fields["dtype"]][0])
        for name, fields in stated.items()
    }


def _problem(fields: Any) -> tuple[str, str] | None:
    """What was found and what is allowed, where an entry is none of a tensor."""
    if not isinstance(fields, dict):
        return repr(fields)[:80], "dtype, shape and data_offsets"
    dtype, shape, place = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        return f"dtype {dtype!r}"[:80], f"one of {', '.join(DTYPES)}"
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        return f"shape {shape!r}"[:80], "a list of whole numbers above zero"
    if math.prod(shape) > MOST_ELEMENTS:
        return f"shape {shape!r}"[:80], f"at most {MOST_ELEMENTS:,} elements"
    nbytes = math.prod(shape) * DTYPES[dtype][1]
    if not _spans(place, nbytes):
        return f"data_offsets {place!r}"[:80], f"two numbers, {nbytes:,} bytes apart"
    return None


def _spans(place: Any, nbytes: int) -> bool:
    """Whether a place in the file is as long as the tensor."""
    is_pair = isinstance(place, list) and [type(number) for number in place] == [int, int]
    return bool(is_pair and place[0] >= 0 and place[1] - place[0] == nbytes)


def _read_index(path: Path) -> dict[str, Entry]:
    """Read the headers of all files that an index names.

    Raises `InputError`: files that are not there, and tensors that are in none.
    """
    index = read_json(path, LARGEST_BYTES)
    placed = index.content.get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(each, str) for each in placed.values()):
        raise InputError(
            index.located(Fault("weight_map", "nothing", "the file of each tensor, by name"))
        )
    names = list(dict.fromkeys(placed.values()))
    foreign = [name for name in names if Path(name).name != name]
    raise_faults(
        Fault("weight_map", list_first(group), allowed, str(path))
        for group, allowed in (
            (foreign, "names of files in the same folder"),
            (
                [name for name in names if name not in foreign and not is_file(path.parent / name)],
                "files that are in the same folder",
            ),
        )
        if group
    )
    headers = (read_header(path.parent / name) for name in names)
    shapes = {tensor: entry for header in headers for tensor, entry in _tensors(header).items()}
    missing = [name for name in placed if name not in shapes]
    refuse_if(
        missing,
        "weight_map",
        list_first(missing),
        "tensors that are in the files of weight_map",
        str(path),
    )
    return {name: shapes[name] for name in placed}

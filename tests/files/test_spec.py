"""Types of fields that are quantities."""

import pytest

from perfmodel.files import (
    load_document,
)
from tests.files.documents import Example, faults_of, write


def test_quantities_are_read_into_si(tmp_path):
    text = "size: 25 MiB\nspeed: 400 Gbit/s\ndelay: 0 s\ncompute: 312 TFLOP/s\n"
    spec = load_document(Example, write(tmp_path, text))
    assert (spec.size, spec.speed, spec.delay, spec.compute) == (25 * 2**20, 50e9, 0, 312e12)


@pytest.mark.parametrize("value", ["true", "'4'", "4.5", "null", "-1", "1e400"])
def test_a_count_is_a_whole_number_above_zero(tmp_path, value):
    (fault,) = faults_of(tmp_path, f"size: 1 B\nitems: [{value}]\n")
    assert fault.field == "items.0"
    assert fault.line == 2

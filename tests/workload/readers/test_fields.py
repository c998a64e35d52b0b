"""Spellings of a shape."""

import pytest

from perfmodel.workload.readers.csv_tables import parse_shape


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("64x3", (64, 3)),
        ("(64,)", (64,)),
        ("torch.Size([2, 3])", (2, 3)),
        ("[]", ()),
        ("4 5", (4, 5)),
        ("2*3", (2, 3)),
        ([7, 1], (7, 1)),
    ],
)
def test_spellings_of_a_shape(text, shape):
    assert parse_shape(text) == shape


@pytest.mark.parametrize("text", ["", "0x3", "-1", "3.5", "nan", "a", "1e3", [1.5], [True]])
def test_shapes_that_are_none(text):
    with pytest.raises(ValueError, match="whole numbers above zero"):
        parse_shape(text)

"""Faults of a CSV of parameters."""

import pytest

from perfmodel.errors import InputError
from perfmodel.workload import load_workload


def faults(call, *arguments):
    with pytest.raises(InputError) as raised:
        call(*arguments)
    return raised.value.faults


def test_every_fault_of_a_csv_with_its_line_and_column(write):
    path = write(
        "bad.csv",
        "name,numel,dtype,forward\na,0,fp32,1.2\na,-3,fp31,-1 ms\n"
        "b,nan,int64,nan ms\n,5,fp32,1 ms,9\n",
    )
    found = [(fault.line, fault.field) for fault in faults(load_workload, path)]
    assert found == [
        (2, "numel"),
        (2, "forward"),
        (3, "numel"),
        (3, "dtype"),
        (3, "forward"),
        (3, "name"),
        (4, "numel"),
        (4, "forward"),
        (4, "dtype"),
        (5, "row"),
        (5, "name"),
    ]
    assert all(fault.file == path for fault in faults(load_workload, path))


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "file"),
        ("name,numel\n", "file"),
        ("nme,numel\na,1\n", "header"),
        ("name\na\n", "header"),
        ("name,numel,numel\na,1,1\n", "header"),
        ("name,numel,forward,forward_us\na,1,1 s,1\n", "header"),
        ("name,numel,requires_grad\na,1,false\n", "requires_grad"),
        ("name,numel,requires_grad\na,1,perhaps\n", "requires_grad"),
        ("name,shape,numel\na,2x3,7\n", "numel"),
        ("name,shape\na,\n", "shape"),
        ("name,numel\na\n", "row"),
        ("name,numel,forward_us\na,1,inf\n", "forward_us"),
    ],
)
def test_one_fault_of_a_csv(write, text, field):
    assert field in [fault.field for fault in faults(load_workload, write("bad.csv", text))]

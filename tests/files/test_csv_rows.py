"""Rows of a CSV with their lines and faults, strictly and as people write them by hand."""

import pytest

from perfmodel.files.csv_rows import RowReader, read_csv, read_table

HAND_WRITTEN = '\ufeff# sizes\n\nname , size\r\na, "[2, 3]" \n,\n# b\nb,4\n'


@pytest.fixture
def read(tmp_path):
    def read_text(text, **options):
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8", newline="")
        faults = []
        return read_csv(path, faults, **options), [(f.line, f.field, f.found) for f in faults]

    return read_text


def test_comments_and_spaces_of_a_hand_written_file(read):
    table, faults = read(HAND_WRITTEN, hand_written=True)
    assert (table.columns, table.line) == (("name", "size"), 3)
    assert [(record.line, *record.cells.values()) for record in table.records] == [
        (4, "a", "[2, 3]"),
        (7, "b", "4"),
    ]
    assert faults == []


def test_a_recorded_file_has_no_comments(read):
    table, faults = read("name,size\n#a,1\n\n,\n")
    assert [record.cells["name"] for record in table.records] == ["#a", ""]
    assert faults == []


def test_rows_of_another_length_are_faults(tmp_path, read):
    table, faults = read("name,size\na\nb,2\nc,3,4\n")
    assert [record.surplus for record in table.records] == [-1, 0, 1]
    assert faults == [(2, "row", "too few cells"), (4, "row", "more cells than columns")]
    assert [record.line for record in read_table(tmp_path / "table.csv", [])] == [3]


@pytest.mark.parametrize(
    ("text", "line"), [("", None), ("\n\n", None), ('name\n"a"b\n', 2), ('name\n"a', 2)]
)
def test_files_without_a_header_or_with_bad_quotes(read, text, line):
    _, faults = read(text)
    assert [fault[:2] for fault in faults] == [(line, "file")]


def test_cells_that_are_not_numbers_are_reported_with_their_line(read):
    table, _ = read("a,b,c,d\n1.5,x,-1,n/a\n")
    faults = []
    reader = RowReader(table.records[0], faults)
    assert [reader.number(name) for name in "abcd"] == [1.5, None, None, None]
    assert reader.count("a") is None
    assert [(fault.line, fault.field) for fault in faults] == [(2, "b"), (2, "c"), (2, "a")]


def test_counts_are_whole_and_within_what_arrays_hold(read):
    """A PiB is the largest size anywhere; one byte more is told with what is allowed."""
    table, _ = read(f"size\n{2**50}\n{2**50 + 1024}\n1.5\n1e300\n")
    faults = []
    counts = [RowReader(record, faults).count("size") for record in table.records]
    assert counts == [2**50, None, None, None]
    assert all("at most 1,125,899,906,842,624" in fault.allowed for fault in faults)
    assert len(faults) == 3

"""What a terminal, a spreadsheet or a narrow encoding would obey or lack."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel.cli.app  # noqa: F401  (registers the rule for narrow encodings)
from perfmodel.errors import Fault, InputError
from perfmodel.escape import PLAIN_ERRORS, printable, spreadsheet_safe
from perfmodel.files import csv_text

DANGEROUS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Categories of Unicode: controls, marks of direction, halves of pairs, line ends."""


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text):
    shown = printable(text)
    assert not {unicodedata.category(c) for c in shown} & DANGEROUS
    assert printable(shown) == shown
    if text.isprintable():
        assert shown == text


@given(st.text(), st.text(), st.text())
def test_a_fault_is_one_line_of_text(field, found, allowed):
    line = str(Fault(field, found, allowed))
    assert not {unicodedata.category(c) for c in line} & DANGEROUS


@given(st.sampled_from(["", "=", "+", "-", "@"]), st.text())
def test_no_cell_of_a_csv_is_a_formula(first, text):
    cell = spreadsheet_safe(first + text)
    try:
        float(cell)
    except ValueError:
        assert cell[:1] not in set("=+-@")


def test_numbers_in_a_csv_stay_numbers():
    assert csv_text(["a"], [[-1.5], [None], ["-2e3"], ["=1+1"]]) == 'a\n-1.5\n""\n-2e3\n\'=1+1\n'


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437"])
def test_every_text_can_be_written_in_every_encoding(encoding):
    text = "\u2500\u2500 5 \u00b5s \u00d7 \u2192 \U0001f600 \ud800"
    shown = text.encode(encoding, PLAIN_ERRORS).decode(encoding)
    assert shown.startswith(("-- 5", "\u2500\u2500 5"))


def test_many_alike_faults_are_counted():
    faults = [Fault(f"rows.{n}.name", f"'x{n}'", "a name", "f.csv", n) for n in range(18)]
    lines = str(InputError(faults)).splitlines()
    assert lines == ["f.csv:0: rows.0.name: found 'x0'; allowed: a name (and 17 more like it)"]


@given(st.lists(st.tuples(st.text("ab", max_size=2), st.sampled_from("xyz")), min_size=1))
def test_a_message_has_eleven_lines_at_most(pairs):
    error = InputError(Fault(field, "1", allowed) for field, allowed in pairs)
    assert len(str(error).splitlines()) <= 11
    assert len(error.faults) == len(pairs)

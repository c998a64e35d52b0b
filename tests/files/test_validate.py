"""Faults of a document in the terms of the file."""

from typing import Annotated

import pytest
from pydantic import Field

from perfmodel.errors import InputError
from perfmodel.files import (
    Count,
    FileModel,
    validate_document,
)
from tests.files.documents import Cat, Example, faults_of


def test_every_fault_is_found_at_once_with_its_line(tmp_path):
    faults = faults_of(
        tmp_path, "size: 25\nspeed: 0 GB/s\ndelay: -1 us\nsped: 3\nratio: .nan\nitems: [1, 0, x]\n"
    )
    found = {(f.field, f.line): (f.found, f.allowed) for f in faults}
    assert found["size", 1] == ("25 (no unit)", "a size such as '25 MiB'")
    assert found["speed", 2] == ("'0 GB/s'", "more than zero")
    assert found["delay", 3] == ("'-1 us'", "zero or more")
    assert "did you mean 'speed'" in found["sped", 4][1]
    assert found["ratio", 5] == ("nan", "a finite number")
    assert found["items.1", 6] == ("0", "greater than 0")
    assert found["items.2", 6] == ("'x'", "a whole number")
    assert len(faults) == 7
    assert all(f.file.endswith("x.yaml") for f in faults)


def test_faults_in_a_union_speak_of_the_member_that_was_chosen(tmp_path):
    (fault,) = faults_of(tmp_path, "size: 1 B\npet:\n  kind: cat\n  barks: loud\n")
    assert (fault.field, fault.line) == ("pet.barks", 4)
    assert "'lives'" in fault.allowed
    assert "'bark'" not in fault.allowed


def test_an_unknown_member_of_a_union_is_told_the_known_ones(tmp_path):
    (fault,) = faults_of(tmp_path, "size: 1 B\npet: {kind: cta}\n")
    assert (fault.field, fault.line, fault.found) == ("pet.kind", 2, "'cta'")
    assert fault.allowed == "one of 'cat', 'dog' (did you mean 'cat'?)"
    (fault,) = faults_of(tmp_path, "size: 1 B\npet: {lives: 3}\n")
    assert (fault.field, fault.found) == ("pet.kind", "nothing")


def test_one_value_for_a_section_is_told_the_fields_of_the_section(tmp_path):
    (fault,) = faults_of(tmp_path, "size: 1 B\npet: bark\n")
    assert "'kind'" in fault.allowed
    with pytest.raises(InputError, match=r"section of fields: 'pages', 'words'"):
        validate_document(Book, {"index": "x"})


class Index(FileModel):
    pages: int = 1
    words: int = 1


class Book(FileModel):
    index: Index | None = None


class Listing(FileModel):
    ranks: Annotated[tuple[Count, ...], Field(min_length=1)]


@pytest.mark.parametrize(("value", "field"), [([-1], "ranks.0"), ([], "ranks")])
def test_a_list_is_not_also_too_short_when_its_member_is_wrong(value, field):
    with pytest.raises(InputError) as caught:
        validate_document(Listing, {"ranks": value})
    assert [fault.field for fault in caught.value.faults] == [field]


def test_a_missing_field_is_named(tmp_path):
    (fault,) = faults_of(tmp_path, "ratio: 2\n")
    assert (fault.field, fault.found) == ("size", "nothing")


@pytest.mark.parametrize("document", [[1, 2], "text", 3])
def test_a_document_that_is_no_mapping_is_refused(document):
    with pytest.raises(InputError, match=r"f\.yaml.*document"):
        validate_document(Example, document, "f.yaml")


class Home(FileModel):
    rooms: int = 2


class Owner(FileModel):
    pet: Cat
    home: Home = Home()


def test_a_section_of_defaults_that_is_null_is_told_how_to_ask_for_them():
    with pytest.raises(InputError) as caught:
        validate_document(Owner, {"pet": None, "home": None})
    pet, home = sorted(caught.value.faults, key=lambda fault: -len(fault.field))[::-1]
    assert (pet.field, home.field) == ("pet", "home")
    assert home.allowed == "a section of fields: 'rooms', or {} for its defaults"
    assert "{}" not in pet.allowed


def test_a_missing_section_is_told_what_it_may_hold():
    with pytest.raises(InputError) as caught:
        validate_document(Owner, {})
    (fault,) = caught.value.faults
    assert (fault.field, fault.found) == ("pet", "no such section")
    assert fault.allowed == "a section of fields: 'kind', 'lives'"

"""What a file may hold: refused before anything walks through it."""

import pytest

from perfmodel.errors import InputError
from perfmodel.files import FileModel, load_document, read_yaml, validate_document
from perfmodel.files.read import LARGEST_YAML_BYTES, parse_yaml, read_text

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


class Example(FileModel):
    size: int = 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        (BOMB, "document", "more than 500,000 values"),
        ("a: " + "[" * 70 + "]" * 70, "file", "more than 60 levels"),
        ("a: {b: [1, 123456789012345678901]}", "a.b.1", "a whole number of 21 digits"),
        ("a: {b: [1, 1e200]}", "a.b.1", "1e+200"),
        ("a: " + "y" * 30_000, "a", "30,000 characters"),
    ],
)
def test_what_is_beyond_the_bounds_is_named(tmp_path, text, field, words):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_yaml(path)
    fault = caught.value.faults[0]
    assert (fault.field, fault.file) == (field, str(path))
    assert words in fault.found


def test_the_value_of_a_flag_has_the_same_bounds():
    with pytest.raises(InputError, match="2\\^53"):
        parse_yaml("{a: 123456789012345678901}")


def test_documents_of_other_formats_have_the_same_bounds():
    with pytest.raises(InputError, match=r"m\.json: size: found a whole number of 16 digits"):
        validate_document(Example, {"size": 2**53 + 1}, "m.json")


def test_devices_and_large_files_are_not_read(tmp_path):
    with pytest.raises(InputError, match="a device or pipe"):
        read_text(type(tmp_path)("/dev/zero"))
    large = tmp_path / "large.yaml"
    large.write_text("# " + "x" * LARGEST_YAML_BYTES)
    with pytest.raises(InputError, match="more than 4 MiB"):
        read_yaml(large)


def test_a_file_that_is_no_section_is_not_quoted(tmp_path):
    """A scenario may name any file; its message shows nothing of it."""
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0:secret:/root:/bin/sh\n")
    with pytest.raises(InputError) as caught:
        load_document(Example, path)
    assert "secret" not in str(caught.value)

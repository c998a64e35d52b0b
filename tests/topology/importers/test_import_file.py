"""Wrong and hostile files: recognised, refused with a reason, in little time and memory."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.topology.importers import import_file
from perfmodel.topology.importers.import_file import kind_of, read_content

HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine" os_index="0"></object></topology>
"""
STATUS = """\
        GPU0    GPU1    GPU2    GPU3
 GPU0   X       OK      NS      NS
 GPU1   OK      X       NS      NS
 GPU2   NS      NS      X       OK
 GPU3   NS      NS      OK      X

Legend:

  X    = Self
  OK   = Status Ok
"""
BOMB = """<?xml version="1.0"?>
<!DOCTYPE system [
 <!ENTITY a "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa">
 <!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">
 <!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">
 <!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;">
 <!ENTITY e "&d;&d;&d;&d;&d;&d;&d;&d;&d;&d;">
]>
<system version="1"><cpu numaid="&e;"/></system>
"""
OUTSIDE = """<!DOCTYPE system [<!ENTITY x SYSTEM "file:///etc/passwd">]>
<system version="1"><cpu numaid="0" arch="&x;"/></system>
"""


def refused(tmp_path: Path, content: str | bytes) -> str:
    path = tmp_path / "given"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as caught:
        import_file(path, gpu="A100-SXM4-80GB")
    assert all(fault.file == str(path) for fault in caught.value.faults)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (HWLOC, "hwloc's XML"),
        (STATUS, "status matrix of `nvidia-smi topo -p2p`"),
        (BOMB, "document type"),
        (OUTSIDE, "document type"),
        ("<!DOCTYPE html><html><body>404 Not Found</body></html>", "HTML page"),
        ("<html lang='en'><head></head></html>", "HTML page"),
        ("<nvidia_smi_log><gpu/></nvidia_smi_log>", "nvidia-smi -q -x"),
        ("<graphs version='1'></graphs>", "an NCCL graph"),
        ("<svg/>", "root element is 'svg'"),
        ("<system version='1'><cpu numaid='0'><pci busid=", "not well formed"),
        ("<system version='1'><cpu numaid='0'><pci busid='1'/>", "cut off"),
        ("<system version='1'></system>", "no cpu element"),
        ("<system version='1'><cpu numaid='0'>" + "<pci>" * 200, "nested deeper than 64"),
        ("", "empty"),
        (" \n\t\n", "empty"),
        (b"\x1f\x8b\x08\x00", "gzip data that end too early"),
        (b"\x7fELF\x02\x01", "a program"),
        (b"abc\x00def", "binary data"),
        (b"\xff\xfe\xff", "not text"),
        (b"caf\xe9 au lait", "begins with 'café au lait'"),
        ("perfmodel: 1\nkind: node\n", "perfmodel's own"),
        ("#       size         count\n#  out-of-place   in-place\n", "perfmodel calibrate"),
        ("P2P Connectivity Matrix\n     D\\D     0     1\n", "p2pBandwidthLatencyTest"),
        ("No devices were found\n", "an error message"),
        ("bash: nvidia-smi: command not found\n", "an error message"),
        ('{"gpus": 8}', "JSON"),
        ("[[0.0, 12.1], [12.0, 0.0]]\n", "what Python prints"),
        ("[{'gpu': 0, 'links': [1, 2]}]", "what Python prints"),
        ("{'GPU0': 'X', 'GPU1': 'NV4'}", "what Python prints"),
        (
            "matrix = tensor([[ 0.0000, 12.1000],\n        [12.0000,  0.0000]])\n",
            "what Python prints",
        ),
        ("Machine (503GB total)\n  Package L#0\n", "lstopo"),
        ("shopping list: eggs", "begins with 'shopping list: eggs'"),
    ],
)
def test_recognised_and_refused(tmp_path: Path, content: str | bytes, reason: str) -> None:
    assert reason in refused(tmp_path, content)


@pytest.mark.parametrize("prefix", ["", "> ", "[1,0]<stdout>:", "2026-05-06T07:08:09Z "])
def test_the_comment_that_names_a_machine_is_kept(tmp_path: Path, prefix: str) -> None:
    """A p4d of 2020, whose file does not say which NICs it has, was 4 x 200 Gbit/s RoCE."""
    pasted = (
        "<!--",
        "Static topology for `p4d.24xlarge`",
        "-->",
        "<system version='1'>",
        "</system>",
    )
    path = tmp_path / "given"
    path.write_text("\n".join(f"{prefix}{line}" for line in pasted))
    content = read_content(path)
    assert "p4d.24xlarge" in content
    assert kind_of(content, str(path)) == kind_of("<system version='1'></system>", "plain")


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        import_file(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"[Dd]irectory"):
        import_file(tmp_path)


@pytest.mark.slow
def test_what_is_huge_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as stream:
        stream.truncate(2**36)  # a file of holes: 64 GiB that take no place
    tracemalloc.start()
    with pytest.raises(InputError, match="more than 64 MiB"):
        import_file(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**28


@pytest.mark.slow
def test_very_many_elements_are_refused(tmp_path: Path) -> None:
    many = "<system version='1'><cpu numaid='0'>" + "<pci/>" * 200_001 + "</cpu></system>"
    assert "more than 200,000 elements" in refused(tmp_path, many)


def test_other_encodings_and_line_ends_are_read(tmp_path: Path) -> None:
    text = "\tGPU0\tCPU Affinity\r\nGPU0\t X \t0-7\r\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path = tmp_path / encoding
        path.write_bytes(text.encode(encoding))
        assert import_file(path, gpu="T4").document["gpu"] == "t4"


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=400), st.text(max_size=400).map(str.encode)))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_bytes(data)
    with pytest.raises(InputError):
        kind_of(read_content(path), str(path))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_topologies_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = (
        "<system version='1'><cpu numaid='0' vendor='GenuineIntel' familyid='6' modelid='85'>"
        "<pci busid='a' class='0x060400' link_speed='8 GT/s' link_width='16'>"
        "<pci busid='b' class='0x030200'><gpu dev='0' sm='70' rank='0'>"
        "<nvlink target='c' count='2' tclass='0x030200'/></gpu></pci>"
        "<pci busid='c' class='0x030200'><gpu dev='1' sm='70' rank='1'/></pci>"
        "<pci busid='d' class='0x020000'><nic><net dev='0' speed='100000'/></nic></pci>"
        "</pci></cpu></system>"
    )
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 12)))
    text = whole[:start] + data.draw(st.text(max_size=6)) + whole[end:]
    path = tmp_path_factory.mktemp("any") / "file"
    path.write_text(text, encoding="utf-8", errors="replace")
    with suppress(InputError):
        import_file(path, gpu="V100-SXM2-16GB").node()


@pytest.mark.parametrize("encoding", ["shift_jis", "no-such-code", "utf-16", "utf-8"])
def test_the_encoding_that_a_document_names_does_not_matter(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "given.xml"
    named = f'<?xml version="1.0" encoding="{encoding}"?>\n<system version="1"></system>'
    path.write_text(named, encoding="utf-8")
    with pytest.raises(InputError, match="no cpu element"):
        import_file(path)


def test_numa_domains_are_not_negative(tmp_path: Path) -> None:
    said = refused(tmp_path, '<system version="1">\n<cpu numaid="-1"/></system>')
    assert said.endswith("given:2: cpu.numaid: found -1; allowed: 0 or more")

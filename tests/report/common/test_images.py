"""Static images: drawn by a real browser, and refused in plain words where there is none."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.errors import ExecutorUnavailable
from perfmodel.report.common import images
from perfmodel.report.run.page import write_report
from perfmodel.studies.run.result import Result

browser_there = pytest.mark.skipif(
    not (shutil.which("chromium") or shutil.which("google-chrome")), reason="no chromium here"
)


def test_every_figure_of_the_page_has_a_file_name(result: Result) -> None:
    names = list(images.pictures(result))
    assert names == [
        "throughput",
        "efficiency",
        "step-time",
        "breakdown",
        "timeline",
        "topology",
        "memory",
    ]


@pytest.mark.slow
@pytest.mark.browser
@browser_there
def test_images_are_drawn_on_white_with_title_and_legend(result: Result) -> None:
    pytest.importorskip("kaleido", reason="kaleido is not installed")
    some = {name: images.pictures(result)[name] for name in ("throughput", "memory")}
    drawn = images.render(some, "png")
    assert list(drawn) == ["throughput.png", "memory.png"]
    for image in drawn.values():
        assert image.startswith(b"\x89PNG")
        width, _ = struct.unpack(">II", image[16:24])
        assert width == 2 * images.WIDTH
    text = images.render({"throughput": images.pictures(result)["throughput"]}, "svg")
    svg = text["throughput.svg"].decode()
    assert "Throughput, images per second" in svg
    assert "linear scaling" in svg
    assert "resnet50 with ddp on example-a100 x 32, weak scaling" in svg


@pytest.mark.slow
def test_without_kaleido_it_says_what_to_install(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "find_spec", lambda name: None)
    with pytest.raises(ExecutorUnavailable, match=r"perfmodel\[img\]"):
        write_report(result, tmp_path / "out", images="png")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_without_a_browser_it_says_so_and_writes_nothing(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("kaleido", reason="kaleido is not installed")
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "absent"))
    with pytest.raises(ExecutorUnavailable, match="apt install chromium"):
        write_report(result, tmp_path / "out", images="svg")
    assert not (tmp_path / "out").exists()


def test_flags_that_need_a_folder_are_refused_together() -> None:
    flags = ["--explore", "--images", "png"]
    done = CliRunner().invoke(app, ["run", "bucket-size-slow-ethernet", *flags])
    assert done.exit_code == 2
    assert "--explore: found no -o DIR" in done.output
    assert "--images: found no -o DIR" in done.output

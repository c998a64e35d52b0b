"""The gallery is what the tool makes today: a part of it is made again and compared."""

from __future__ import annotations

import csv
import io
import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "reports"
sys.path.insert(0, str(HERE))

from gallery import bucket_study, make, network_upgrade, scaling_curves  # noqa: E402

from perfmodel.scenario import load_scenario  # noqa: E402
from perfmodel.studies.run import run_scenario  # noqa: E402

GALLERY = HERE / "gallery"
CLOSE = 1e-6
"""Committed numbers have nine digits; other processors may round the last ones otherwise."""


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def same(made: list[dict[str, str]], kept: list[dict[str, str]]) -> None:
    assert len(made) == len(kept) > 0
    for one, other in zip(made, kept, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            try:
                wanted = pytest.approx(float(other[key]), rel=CLOSE, abs=1e-9)
            except ValueError:
                assert value == other[key], key
            else:
                assert float(value) == wanted, key


@pytest.mark.slow
def test_one_bucket_study_again() -> None:
    case = bucket_study.case_of("ResNet-50", "10 Gbit/s, TCP")
    for name, made in (
        ("bucket-caps.csv", bucket_study.curve_csv([case])),
        ("bucket-choices.csv", bucket_study.choices_csv([case])),
    ):
        kept = rows((GALLERY / name).read_text(encoding="utf-8"))
        same(rows(made), [row for row in kept if (row["model"], row["network"]) == case.key[:2]])


@pytest.mark.slow
def test_one_upgrade_again() -> None:
    name = "100 Gbit/s"
    made = rows(network_upgrade.upgrades_csv({name: network_upgrade.upgraded(name)}))
    kept = rows((GALLERY / "network-upgrade.csv").read_text(encoding="utf-8"))
    same(made, [row for row in kept if row["network"] == name])


@pytest.mark.slow
def test_the_small_end_of_a_curve_again() -> None:
    name, (file, _) = next(iter(scaling_curves.CURVES.items()))
    few = ["scale.gpus=[1, 2, 4, 8]", "cluster.nodes=1"]
    result = run_scenario(load_scenario(GALLERY / f"{file}.yaml", few))
    kept = rows((GALLERY / "scaling-curves.csv").read_text(encoding="utf-8"))
    made = rows(scaling_curves.curves_csv({name: result}))
    same(made, [row for row in kept if row["curve"] == name][: len(made)])


def test_text_names_only_files_that_are_there() -> None:
    text = (GALLERY / "README.md").read_text(encoding="utf-8")
    assert text.startswith(make.HEAD)
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert len(links) >= 7
    assert [link for link in links if not (GALLERY / link).exists()] == []
    assert sum(file.stat().st_size for file in GALLERY.iterdir() if file.is_file()) < 1.5e6

"""The recorded experiment with real DDP on shaped links: errors, and regret of recommended buckets.

None of its runs was used to calibrate (`reports/experiments/gloo_ddp/README.md`). A real run of a
few trainings is made where ``PERFMODEL_REAL_RUNS=1`` is set, as root and with torch.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from perfmodel import load_scenario
from perfmodel.studies.run.resolve.training_job import assign_buckets
from perfmodel.studies.run.steps.sized_job import prepare
from reports.experiments.gloo_ddp import compare
from reports.experiments.gloo_ddp.lab import Net
from reports.experiments.gloo_ddp.models import MODELS
from reports.experiments.gloo_ddp.scenario import write_scenario


@cache
def rows() -> list[dict[str, str]]:
    return list(csv.DictReader((compare.FOLDER / "ddp_iters.csv").read_text().splitlines()))


def key_of(row: dict[str, str]) -> tuple[str, ...]:
    return compare.net_of(row), row["model"], row["bucket_cap_mb"], row["accum"]


@pytest.mark.slow
def test_step_times_of_runs_that_nothing_was_fitted_to(tmp_path: Path) -> None:
    """Two cores for up to eight hosts; rounds differ by half a per cent.

    Every fourth training is predicted, which takes its time: those of every net and model.
    """
    keys = list(dict.fromkeys(map(key_of, rows())))
    assert len(keys) == 312
    for name in ("linkcal.csv", "models.csv"):
        shutil.copy(compare.FOLDER / name, tmp_path)
    chosen = set(keys[::4])
    assert {key[:2] for key in chosen} == {key[:2] for key in keys}
    with (tmp_path / "ddp_iters.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows()[0]))
        writer.writeheader()
        writer.writerows(row for row in rows() if key_of(row) in chosen)
    errors = sorted(abs(one.error) for one in compare.trainings(tmp_path))
    assert len(errors) == 78
    assert statistics.median(errors) < 0.0105
    assert errors[int(0.9 * len(errors))] < 0.038


def test_what_is_recommended_is_as_good_as_the_best_that_was_measured() -> None:
    """Regret of the lists of caps that `tune` recommended, run for real, from the records alone."""
    known = [
        compare.Trained(row, frozenset([row["why"]]), (float(row["iter_ms_med"]),), 0.0, 1.0)
        for row in rows()
    ]
    groups: dict[tuple[str, ...], list[compare.Trained]] = {}
    for one in known:
        groups.setdefault(key_of(one.row), []).append(one)
    joined = [
        compare.Trained(
            same[0].row,
            frozenset().union(*(one.whys for one in same)),
            tuple(one.rounds_ms[0] for one in same),
            0.0,
            1.0,
        )
        for same in groups.values()
    ]
    found = [one for one in compare.regrets(joined) if "tune: list" in one.by_choice]
    lists = sorted(one.by_choice["tune: list"] for one in found)
    default = [one.by_choice["default"] for one in found]
    assert len(lists) == 21
    assert statistics.median(lists) < 0.001
    assert lists[-1] < 0.05
    assert lists[-2] < 0.015
    assert statistics.median(default) > 0.07
    within = [one.by_choice["tune: list"] <= max(one.noise, 0.01) for one in found]
    assert sum(within) >= 20


def test_the_records_are_of_torch_s_own_buckets() -> None:
    """What DDP said it made is what its caps make of the model, to the byte."""
    from perfmodel.files.csv_rows import read_table
    from perfmodel.training.ddp.buckets import ddp_buckets
    from reports.validation.trainings.testbed import models_of, options_of

    models = models_of(read_table(compare.FOLDER / "models.csv", []))
    for row in rows():
        made = ddp_buckets(models[row["model"]][0], options_of(row), iteration="steady")
        said = list(map(int, row["bucket_bytes"].split("|")))
        assert [bucket.nbytes for bucket in made] == said


def test_the_scenario_of_a_net_is_what_a_user_would_write(tmp_path: Path) -> None:
    net = Net(hosts=3, rate_mbit=250, mtu=9000, delay_us=0)
    path = write_scenario(tmp_path, net, "vgg-like", [], ", bucket_cap: 1 MiB")
    scenario = load_scenario(path)
    assert scenario.cluster.nodes == 3
    alone_s = (30 + 60) * 1e-3
    assert prepare(scenario).step().step_time_s > alone_s
    total = sum(sum(layer.numels) for layer in MODELS["vgg-like"])
    assert total == sum(
        int(line.split(",")[1]) for line in (tmp_path / "model.csv").read_text().split()[1:]
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cap", ["0.1", "0.25", "0.5", "1"])
def test_the_scenario_has_the_buckets_that_were_made(tmp_path: Path, model: str, cap: str) -> None:
    """To the byte: gradients of one function do not come in the order of its tensors."""
    said = {
        row["bucket_bytes"]
        for row in rows()
        if (row["model"], row["bucket_cap_mb"]) == (model, cap)
    }
    net = Net(hosts=2, rate_mbit=300, mtu=9000, delay_us=0)
    path = write_scenario(tmp_path, net, model, [], f", bucket_cap: {cap} MiB")
    made = assign_buckets(prepare(load_scenario(path)).job)
    assert said == {"|".join(str(bucket.nbytes) for bucket in made)}


REAL = (
    os.environ.get("PERFMODEL_REAL_RUNS") == "1"
    and hasattr(os, "geteuid")
    and os.geteuid() == 0
    and importlib.util.find_spec("torch") is not None
)


@pytest.mark.skipif(not REAL, reason="PERFMODEL_REAL_RUNS=1, root and torch")
def test_a_few_real_trainings(tmp_path: Path) -> None:
    """Two hosts, two caps: half a minute. Within 8 % whatever else the machine does."""
    command = [sys.executable, "-m", "reports.experiments.gloo_ddp.run", "--nets", "0"]
    command += ["--models", "vgg-like", "--caps", "1,inf", "--rounds", "1", "-o", str(tmp_path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    found = compare.trainings(tmp_path)
    assert len(found) == 2
    assert all(abs(one.error) < 0.08 for one in found)

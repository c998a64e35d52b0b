"""Run the whole experiment: ``python -m reports.experiments.gloo_ddp.run`` as root.

It measures the links, asks perfmodel which buckets to take on them, and trains for real with caps
that anybody could try and with those. What it measures goes to ``testbed/``, row by row; with
``--add`` settings that are there already are left out. About an hour for all.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from reports.experiments.gloo_ddp import links, settings
from reports.experiments.gloo_ddp.keep_awake import KeepAwake
from reports.experiments.gloo_ddp.lab import Lab, Net
from reports.experiments.gloo_ddp.models import MODELS
from reports.experiments.gloo_ddp.scenario import recommended, write_scenario
from reports.experiments.gloo_ddp.train import Timed, Trial, run_trials, spread

FOLDER = Path(__file__).with_name("testbed")
MODEL_COLUMNS = ("model", "layer", "name", "tensor", "numel", "fwd_ms", "bwd_ms")
COLUMNS = (
    "scenario",
    "model",
    "mode",
    "bucket_cap_mb",
    "why",
    "round",
    "accum",
    "n",
    "topo",
    "rate_mbit",
    "delay_us",
    "mtu",
    "burst",
    "cc",
    "gloo_threads",
    "cores",
    "iters",
    "iter_ms_min",
    "iter_ms_p25",
    "iter_ms_med",
    "iter_ms_p75",
    "iter_ms_max",
    "bucket_bytes",
    "load1",
)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nets", default="", help="numbers of settings.NETS, such as 0,3")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--caps", default="", help="instead of all: such as 1,inf, none tuned")
    parser.add_argument("--rounds", type=int, default=settings.ROUNDS)
    parser.add_argument("-o", "--output", type=Path, default=FOLDER)
    parser.add_argument("--add", action="store_true", help="keep what is recorded already")
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("run it as root: it makes network namespaces")
    nets = [settings.NETS[int(at)] for at in given.nets.split(",") if at] or list(settings.NETS)
    caps = [cap for cap in given.caps.split(",") if cap]
    with KeepAwake():
        run(nets, given.models.split(","), given.output, caps, given.rounds, add=given.add)


def run(
    nets: Sequence[Net],
    models: Sequence[str],
    folder: Path,
    caps: Sequence[str],
    rounds: int,
    *,
    add: bool = False,
) -> None:
    """Measure everything on each of some nets; results are written as they come."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "models.csv", MODEL_COLUMNS, model_rows(), add=False)
    for at, net in enumerate(nets):
        say(f"{net}: links")
        calibrated = links.calibrated(net)
        write(folder / "linkcal.csv", links.COLUMNS, calibrated, add=add or at > 0)
        trials = [trial for model in models for trial in trials_of(net, model, calibrated, caps)]
        rows = trained(net, trials, rounds)
        write(folder / "ddp_iters.csv", COLUMNS, rows, add=add or at > 0)


def trials_of(
    net: Net, model: str, calibrated: Sequence[links.Row], caps: Sequence[str]
) -> list[Trial]:
    """What is tried on a net: the given caps, or the grid and what perfmodel recommends."""
    if caps:
        return [Trial(model, cap) for cap in caps]
    say(f"{net}: which buckets for {model}?")
    rows = [{name: str(value) for name, value in row.items()} for row in calibrated]
    with tempfile.TemporaryDirectory() as folder:
        found = recommended(write_scenario(Path(folder), net, model, rows))
    say(f"{found}")
    tuned = [Trial(model, caps, why) for why, caps in found.items()]
    return [*settings.grid(model), *tuned, *settings.two_batches(model)]


def trained(net: Net, trials: Sequence[Trial], rounds: int) -> Iterable[dict[str, object]]:
    """Train with each, in another order in each round."""
    for number in range(rounds):
        order = list(trials)
        random.Random(number).shuffle(order)  # noqa: S311  (no secret)
        say(f"{net}: {len(order)} trainings, round {number}")
        with Lab(net) as lab:
            timed = run_trials(lab, order)
        yield from (
            row_of(net, trial, one, number) for trial, one in zip(order, timed, strict=True)
        )


def row_of(net: Net, trial: Trial, timed: Timed, number: int) -> dict[str, object]:
    """One row of the table."""
    return {
        "scenario": "accumulation" if trial.accumulate > 1 else "real",
        "model": trial.model,
        "mode": "ddp",
        "bucket_cap_mb": trial.caps,
        "why": trial.why,
        "round": number,
        "accum": trial.accumulate,
        "n": net.hosts,
        "topo": "star",
        "rate_mbit": net.rate_mbit,
        "delay_us": net.delay_us,
        "mtu": net.mtu,
        "burst": net.burst_bytes,
        "cc": "cubic",
        "gloo_threads": 2,
        "cores": os.cpu_count(),
        "iters": len(timed.steps_ms),
        **{name: round(value, 3) for name, value in spread(timed.steps_ms).items()},
        "bucket_bytes": timed.buckets,
        "load1": round(timed.load, 2),
    }


def model_rows() -> list[dict[str, object]]:
    """Tensors and times of all models; a row per tensor, times at the first of a layer."""
    return [
        {
            "model": model,
            "layer": at,
            "name": layer.name,
            "tensor": tensor,
            "numel": numel,
            "fwd_ms": "" if tensor else layer.forward_ms,
            "bwd_ms": "" if tensor else layer.backward_ms,
        }
        for model, layers in MODELS.items()
        for at, layer in enumerate(layers)
        for tensor, numel in enumerate(layer.numels)
    ]


def write(
    path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]], *, add: bool
) -> None:
    """Write a table, or more rows of it, each as soon as it is there."""
    fresh = not add or not path.is_file()
    with path.open("w" if fresh else "a", newline="") as file:
        table = csv.DictWriter(file, columns, lineterminator="\n")
        if fresh:
            table.writeheader()
        for row in rows:
            table.writerow(row)
            file.flush()


def say(what: str) -> None:
    """Tell how far it is."""
    print(what, file=sys.stderr, flush=True)  # noqa: T201  (a command)


if __name__ == "__main__":
    main()

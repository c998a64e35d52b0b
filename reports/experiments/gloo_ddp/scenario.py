"""The same trials as scenarios, as a user would write them for perfmodel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import perfmodel
from perfmodel.files.csv_rows import Record
from perfmodel.studies.tune.model import TuneResult
from perfmodel.studies.tune.run import tune_scenario
from reports.experiments.gloo_ddp.lab import Net
from reports.experiments.gloo_ddp.models import MODELS, Layer
from reports.validation.trainings.shaped_links import measured_links, shaped_of
from reports.validation.trainings.testbed import accumulation_order

CORES = 2

NODE = """\
# One process on a link of the lab: {mbit} Mbit/s, MTU {mtu}, {delay} us one way.
perfmodel: 1
kind: node
description: 1 process on a shaped link
gpu: emulated-process
links:
  tcp:
    network: tcp
    kind: ethernet
    bandwidth: {rate_Bps:.1f} B/s
    source: "links.py, plain TCP between two hosts of the lab, less acknowledgements"
    efficiency: 1.0
    latency: {end_us:.3f} us
  own:
    {{kind: pcie, bandwidth: 21.3 GB/s, efficiency: 1.0, latency: 0 s, source: "RAM of the lab"}}
nodes:
  - {{id: rank0, kind: gpu}}
  - {{id: cpu0, kind: cpu}}
  - {{id: nic0, kind: nic, port: tcp}}
edges:
  - {{from: rank0, to: cpu0, link: own}}
  - {{from: nic0, to: cpu0, link: own}}
gpu_p2p: false
gpudirect_rdma: false
sockets: {{burst: {burst} B, frame: {mtu} B, cores: {cores}, core_speed: {speed:.4f}, source: lab}}
"""

SCENARIO = """\
# How long is a step of {model} on {hosts} hosts at {mbit} Mbit/s, and which buckets are best?
perfmodel: 1
model: {{file: model.csv}}
compute: {{source: file, times: times.csv, precision: fp32, optimizer: sgd}}
strategy: {{kind: ddp{strategy}}}
cluster: {{node: host.yaml, nodes: {hosts}, fabric: {{kind: one-switch}}}}
training: {{batch_per_gpu: 1}}
library: {{name: gloo}}
"""


def write_scenario(
    folder: Path, net: Net, model: str, links: Sequence[Mapping[str, str]], strategy: str = ""
) -> Path:
    """Write a scenario with its model, its times and its host.

    Parameters
    ----------
    folder : Path
    net : Net
    model : str
    links : sequence of rows
        As `links.calibrated` returns them, as text.
    strategy : str
        More words of the strategy, such as ``, bucket_cap: 1 MiB``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layers = MODELS[model]
    (folder / "model.csv").write_text(_parameters(layers))
    (folder / "times.csv").write_text(_times(layers))
    cells = {
        "n": str(net.hosts),
        "rate_mbit": str(net.rate_mbit),
        "mtu": str(net.mtu),
        "delay_us": str(net.delay_us),
        "burst": str(net.burst_bytes),
    }
    records = [Record(dict(row), "linkcal.csv", number) for number, row in enumerate(links)]
    shaped = shaped_of(cells, measured_links(records), CORES)
    node = NODE.format(
        mbit=net.rate_mbit,
        mtu=net.mtu,
        delay=net.delay_us,
        rate_Bps=shaped.rate_Bps,
        end_us=shaped.one_way_s / 2 * 1e6,
        burst=net.burst_bytes,
        cores=CORES,
        speed=shaped.core_speed,
    )
    (folder / "host.yaml").write_text(node)
    path = folder / "scenario.yaml"
    text = SCENARIO.format(model=model, hosts=net.hosts, mbit=net.rate_mbit, strategy=strategy)
    path.write_text(text)
    return path


def _parameters(layers: Sequence[Layer]) -> str:
    """Tensors so that gradients come as they do: against the order of the rows."""
    rows = [
        f"{layer.name}.{number},{layer.numels[number]},{layer.name}"
        for at, layer in enumerate(layers)
        for number in reversed(accumulation_order(len(layer.numels), leaf=at == 0))
    ]
    return "\n".join(["name,numel,layer", *rows, ""])


def _times(layers: Sequence[Layer]) -> str:
    rows = [f"{layer.name},{layer.forward_ms},{layer.backward_ms}" for layer in layers]
    return "\n".join(["name,forward_ms,backward_ms", *rows, ""])


def recommended(path: Path) -> dict[str, str]:
    """What ``perfmodel tune`` recommends: caps as `train.Trial` takes them."""
    tuned: TuneResult = tune_scenario(perfmodel.load_scenario(path))
    return {
        "tune: uniform": f"{tuned.best_uniform.bucket_cap_mb}",
        "tune: list": _joined(tuned.best_list.bucket_cap_mb_list or ()),
        "tune: integers": _joined(tuned.best_integer_list.bucket_cap_mb_list or ()),
    }


def _joined(caps: Sequence[float]) -> str:
    """Caps by "|"; one alone is written twice, so that it stays a list."""
    return "|".join(map(str, caps if len(caps) > 1 else [*caps, *caps]))

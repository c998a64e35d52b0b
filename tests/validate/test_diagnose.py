"""Verdicts on logs: faults are found, and machines without one are not accused."""

from __future__ import annotations

import json
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import perfmodel.validate
from perfmodel.calibrate.readers import SweepRow
from perfmodel.cli.app import build_app
from perfmodel.library.settings import LibrarySettings
from perfmodel.memo import once
from perfmodel.studies.run.collective import collective_rows
from perfmodel.topology.model import Topology
from perfmodel.validate import diagnose as diagnose_module
from perfmodel.validate.diagnose import Diagnosis, diagnose
from perfmodel.validate.match import Matched, match
from perfmodel.validate.read import read_sweeps
from perfmodel.validate.suspects import Suspect, find_suspects
from tests.validate.fault_cases import A100, CASES, FaultCase, lost, machine_of, settings

SIZES = [2**octave for octave in range(10, 33, 2)]
SCATTER, COMMON = 0.03, 0.05
"""Of the times of a log: size by size, and all together; logarithms."""


def measured(machine: Topology, given: LibrarySettings, seed: int) -> list[SweepRow]:
    """Times as nccl-tests would print them, with errors of the model and of the run."""
    draw = np.random.default_rng(seed)
    common = draw.normal(0, COMMON)
    return [
        SweepRow(row["nbytes"], row["time_s"] * float(np.exp(common + draw.normal(0, SCATTER))))
        for row in collective_rows(machine, op="all_reduce", sizes=SIZES, settings=given)
    ]


@cache
def asked_of(machine: str, hosts: int, fabric: str | None) -> tuple[Topology, list[Suspect]]:
    """A machine without a fault, and those that it may have."""
    healthy = machine_of(machine, hosts, fabric)
    return healthy, find_suspects(healthy, LibrarySettings())


def rank_of(case: FaultCase, seed: int) -> int | None:
    """Place of the right fault among those that a diagnosis names; None: it does not."""
    healthy, suspects = asked_of(case.machine, case.hosts, case.fabric)
    rows = measured(*case.fault(healthy), seed)
    found = diagnose(healthy, LibrarySettings(), "all_reduce", rows, suspects=suspects).suspects
    return next((at for at, each in enumerate(found, 1) if case.name in each.names), None)


@pytest.mark.slow
def test_the_right_fault_of_forty_is_named_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """At least 32 stand first, with those that times cannot tell apart; 38 among three."""
    known: dict[Hashable, Any] = {}  # times of a machine and its suspects, for all its logs

    def rows_of(machine: Topology, *, sizes: list[int], nominal: Any, **asked: Any) -> Any:
        return once(
            known,
            (id(machine), repr(nominal.machine.settings), tuple(sizes)),
            lambda: collective_rows(machine, sizes=sizes, nominal=nominal, **asked),
        )

    monkeypatch.setattr(diagnose_module, "collective_rows", rows_of)
    ranks = [rank_of(case, seed) for seed, case in enumerate(CASES)]
    assert len(ranks) == 40
    assert ranks.count(1) >= 32
    assert sum(rank is not None and rank <= 3 for rank in ranks) >= 38


@pytest.mark.slow
def test_recorded_machines_are_not_accused() -> None:
    """Sweeps whose logs are whole and whose hardware is stated, on up to 64 GPUs."""
    folder = Path(perfmodel.validate.__file__).parent / "data"
    verdicts = []
    for sweep in read_sweeps(folder):
        matched = match(sweep, folder)
        if sweep.trust < 4 or not isinstance(matched, Matched) or matched.unstated:
            continue
        if len(matched.topology.ranks) <= 64:
            found = diagnose(
                matched.topology, matched.settings, matched.op, sweep.rows, suspects=()
            )
            verdicts.append(found.verdict)
    assert len(verdicts) >= 30
    assert "slow" not in verdicts


def judged(diagnosis: Diagnosis) -> tuple[str, int | None, bool]:
    return diagnosis.verdict, diagnosis.slow_from_bytes, diagnosis.shortfall > 0


def test_a_verdict_says_from_which_size_on() -> None:
    """Twice the time from 1 MiB on is half of the bandwidth from there on."""
    machine = machine_of("dgx-a100", 1, None)
    rows = collective_rows(machine, op="all_reduce", sizes=SIZES, settings=LibrarySettings())
    slow = [SweepRow(r["nbytes"], r["time_s"] * (10 if r["nbytes"] >= 2**20 else 1)) for r in rows]
    found = diagnose(machine, LibrarySettings(), "all_reduce", slow)
    assert (found.verdict, found.slow_from_bytes) == ("slow", 2**20)
    assert found.shortfall == pytest.approx(0.9)
    same = [SweepRow(row["nbytes"], row["time_s"]) for row in rows]
    assert judged(diagnose(machine, LibrarySettings(), "all_reduce", same)) == (
        "as expected",
        None,
        False,
    )


# ---------------------------------------------------------------- the command

HEAD = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 4294967296 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
{ranks}
#                                                              out-of-place
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
"""


def log_of(machine: Topology, given: LibrarySettings, extra: str = "") -> str:
    """A log of nccl-tests on some machine."""
    size = len(machine.ranks)
    ranks = "\n".join(
        f"#  Rank {rank:2d} Group  0 Pid {100 + rank} on   host{rank // 8} device {rank % 8} "
        f"[0x0{rank % 8}] NVIDIA A100-SXM4-80GB"
        for rank in range(size)
    )
    lines = [HEAD.format(ranks=ranks)]
    for row in measured(machine, given, 1):
        algbw = row.nbytes / row.time_s / 1e9
        lines.append(
            f"{row.nbytes:>12} {row.nbytes // 4:>12} float sum -1 {row.time_s * 1e6:.3f} "
            f"{algbw:.3f} {algbw * 2 * (size - 1) / size:.3f} 0\n"
        )
    return "".join(lines) + extra


def ask(path: Path, *flags: str) -> tuple[int, str]:
    words = ["diagnose", str(path), "--topology", "dgx-a100", "--fabric", "rail-optimised"]
    done = CliRunner().invoke(build_app(["diagnose"]), [*words, *flags])
    return done.exit_code, done.output


def test_the_command_names_the_part_to_look_at(tmp_path: Path) -> None:
    machine = machine_of(*A100)
    path = tmp_path / "nccl.log"
    path.write_text(log_of(*lost("n1/nic3")(machine)), "utf-8")
    code, text = ask(path)
    assert code == 0
    assert "below the expected bandwidth from" in text
    assert "A NIC of one host is down" in text
    code, text = ask(path, "--json")
    (table,) = json.loads(text)["tables"]
    assert (table["op"], table["ranks"], table["nodes"]) == ("all_reduce", 16, 2)
    assert "nic_down" in table["suspects"][0]["names"]
    assert table["suspects"][0]["faults"]["nic_down"]["look_at"]


def test_what_the_log_says_itself_stands_first(tmp_path: Path) -> None:
    machine = machine_of(*A100)
    said = "host0:100:1 [0] NCCL INFO Using network Socket\n"
    path = tmp_path / "nccl.log"
    path.write_text(log_of(*settings(NCCL_IB_DISABLE="1")(machine), said), "utf-8")
    _, text = ask(path, "--json")
    (table,) = json.loads(text)["tables"]
    first = table["suspects"][0]
    assert first["names"][0] == "sockets"
    assert first["lines"] == [path.read_text("utf-8").splitlines().index(said.strip()) + 1]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(8)/GDRDMA", None),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA", None),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(8)", "gpudirect_off"),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0", "gpudirect_off"),
        ("Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0", "sockets"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "p2p_off"),
    ],
)
def test_lines_of_nccl_are_read_as_it_means_them(line: str, named: str | None) -> None:
    assert diagnose_module._said_by(f"h:1 NCCL INFO {line}\n") == ({named: (1,)} if named else {})


def test_what_the_log_names_stands_whatever_it_explains() -> None:
    machine = machine_of(*A100)
    rows = measured(machine, LibrarySettings(), 1)
    found = diagnose(machine, LibrarySettings(), "all_reduce", rows, {"sockets": (7,)})
    assert (found.suspects[0].names[0], found.suspects[0].lines) == ("sockets", (7,))


def test_settings_that_are_stated_are_expected(tmp_path: Path) -> None:
    """NCCL_PROTO=LL on the command line of the run: slow by itself, and so it should be."""
    machine = machine_of(*A100)
    path = tmp_path / "nccl.log"
    path.write_text(log_of(*settings(NCCL_PROTO="LL")(machine)), "utf-8")
    _, text = ask(path, "--env", "NCCL_PROTO=LL", "--json")
    assert json.loads(text)["tables"][0]["verdict"] == "as expected"


@pytest.mark.parametrize(
    ("content", "flags", "said"),
    [
        ("nothing of the kind\n", (), "text without a table or a matrix"),
        (None, ("--nodes", "3"), "16 ranks on 3 nodes"),
        (None, ("--gpus-per-node", "4"), "--gpus-per-node"),
    ],
)
def test_what_does_not_fit_is_refused(
    content: str | None, flags: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(content or log_of(machine_of(*A100), LibrarySettings()), "utf-8")
    code, text = ask(path, *flags)
    assert code == 2 or said in text
    assert str(path.name) in text
    assert said in text

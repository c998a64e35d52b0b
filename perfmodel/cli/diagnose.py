"""``perfmodel diagnose``: is a machine as fast as it should be, and if not, what to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.calibrate import MACHINE_FLAGS, MeasuredNodes, OpOfTables
from perfmodel.cli.output import (
    Environment,
    FabricOption,
    GpusPerNodeOption,
    JsonOption,
    NcclVersion,
    ProfileOption,
    flags_as_fields,
    library_settings,
    load_profile,
    print_answer,
    print_notes,
)


@flags_as_fields(MACHINE_FLAGS)
def diagnose(
    log: Annotated[
        Path,
        typer.Argument(metavar="LOG", help="What nccl-tests printed, with NCCL_DEBUG or without."),
    ],
    topology: Annotated[
        str,
        typer.Option(
            "--topology", metavar="T", help="The machine: a name, or a file (topology import)."
        ),
    ],
    nodes: MeasuredNodes = None,
    gpus_per_node: GpusPerNodeOption = None,
    fabric: FabricOption = None,
    op: OpOfTables = None,
    env: Environment = None,
    nccl_version: NcclVersion = None,
    profile: ProfileOption = None,
    json: JsonOption = False,
) -> None:
    """Say whether a log of nccl-tests is as expected of the machine, and what to look at if not.

    Each table is compared with the times that are expected, by size, and with those of the same
    machine with one fault: a NIC or NVLinks down, links at half their rate, GPUDirect or peer
    access off, another algorithm or protocol, sockets in place of InfiniBand, crossed rails, a slow
    host. Faults that explain the log stand first, with what to look at. With --profile of a run
    when the machine was well less is left to chance.
    """
    from perfmodel.calibrate.transfer.inputs import MachineRequest
    from perfmodel.report.diagnosis import diagnosis_json, diagnosis_lines
    from perfmodel.validate.diagnose import diagnose_log

    settings = library_settings("nccl", "auto", env or [], nccl_version, one_process=False)
    print_notes(*settings.notes())
    diagnoses = diagnose_log(
        log,
        MachineRequest(topology, nodes, gpus_per_node, fabric),
        op=op,
        settings=settings,
        profile=load_profile(profile),
    )
    print_answer(diagnoses, json=json, to_json=diagnosis_json, lines=diagnosis_lines)
    print_notes(*dict.fromkeys(f"Note: {note}." for each in diagnoses for note in each.notes))

"""A machine with the factors of sweeps, which hold for any scale of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from perfmodel.calibrate.profile import Profile
from perfmodel.calibrate.transfer.forward_model import stretched_arcs, with_arcs
from perfmodel.calibrate.transfer.gaussian_process import Residual
from perfmodel.calibrate.transfer.model import Transfer, model_of
from perfmodel.calibrate.transfer.parameters import MEANINGS, bandwidths_of, measured_of
from perfmodel.errors import Fault, InputError
from perfmodel.library.machine import Machine
from perfmodel.topology.model import Topology

GOLDEN = (5.0**0.5 - 1.0) / 2.0
"""Multiples of it fill the unit interval evenly however many they are (Kronecker sequence)."""

STARTS = frozenset({"issue", "awaited"})
"""Factors on time that no way takes, so that what is left of ways does not stretch it."""

TOLD = 0.3
"""Share of a factor's expected spread that data must settle for it to count as measured."""


def transferred(profile: Profile, transfer: Transfer, machine: Machine) -> Machine:
    """Return the machine as the factors of a profile, and what they leave, make it.

    Raises
    ------
    InputError
        A profile of another GPU or library; all faults.
    """
    faults = []
    if transfer.gpu != model_of(machine.topology.gpu.name):
        allowed = f"a profile of {model_of(machine.topology.gpu.name)}"
        faults.append(Fault("profile", f"{profile.name!r}, made on {transfer.gpu}", allowed))
    if profile.library != machine.library.name:
        allowed = f"a profile of library {machine.library.name!r}"
        found = f"{profile.name!r}, made for library {profile.library!r}"
        faults.append(Fault("profile", found, allowed))
    if faults:
        raise InputError(faults)
    factors = transfer.by_lever
    measured = replace(measured_of(factors), residual=transfer.residual)
    topology = _stretched(machine.topology, bandwidths_of(factors))
    said = _told(topology, profile, transfer, transfer.otherwise(machine.settings))
    return machine.stretched(said, measured)


def drawn(
    transfer: Transfer, rng: np.random.Generator, number: int = 0, *, new_run: bool
) -> Transfer:
    """Draw factors from their covariance, and with them a residual that the rows allow.

    Parameters
    ----------
    transfer : Transfer
    rng : Generator
    number : int
        Of the draw, from 0 on: deviations of the residual are those of an even sequence, so that
        few draws have the quantiles that they should.
    new_run : bool
        Also draw what a run has of its own: an interval then covers a time that is measured, and
        not only what is expected of one.
    """
    sizes, axes = np.linalg.eigh(np.array(transfer.covariance).reshape(len(transfer.factors), -1))
    wide = transfer.runs.widened
    logs = axes @ (wide * np.sqrt(np.maximum(sizes, 0.0)) * rng.standard_normal(len(sizes)))
    deviations = wide * NormalDist().inv_cdf((0.5 + number * GOLDEN) % 1.0)
    # Hosts that start collectives differ from run to run as what they start does.
    again = deviations * transfer.runs.start * new_run
    own = [log + again * (f.of in STARTS) for f, log in zip(transfer.factors, logs, strict=True)]
    factors = tuple(
        factor.model_copy(update={"factor": factor.factor * float(np.exp(log))})
        for factor, log in zip(transfer.factors, own, strict=True)
    )
    found = transfer.model_copy(update={"factors": factors})
    residual = transfer.residual
    if residual is not None:
        slopes = np.array([point.slopes for point in transfer.points])
        vars(found)["residual"] = _moved(residual, slopes @ logs, deviations, new_run=new_run)
    return found


def _moved(residual: Residual, by: np.ndarray, deviations: float, *, new_run: bool) -> Residual:
    """What other factors leave of the same rows."""
    moved = residual.moved(residual.over - by, deviations)
    return moved if new_run else replace(moved, new_run=False)


def _stretched(topology: Topology, factors: dict[str, float]) -> Topology:
    """The topology with other `arcs`; its graph keeps what the library goes by when it chooses."""
    if all(factor == 1.0 for factor in factors.values()):
        return topology
    return with_arcs(topology, stretched_arcs(topology, factors))


def _told(
    topology: Topology, profile: Profile, transfer: Transfer, otherwise: Sequence[str]
) -> Topology:
    """The topology whose sources and assumptions say what was measured."""
    scales = sorted({(point.hosts, point.ranks) for point in transfer.points})
    where = " and ".join(f"{ranks} ranks on {hosts} hosts" for hosts, ranks in scales)
    origin = f"profile {profile.name} of {profile.date}, {', '.join(transfer.files)}: {where}"
    measured = {
        f"measured {factor.lever}": f"{MEANINGS[factor.of]} times {factor.factor:.3g}, 80 % "
        f"interval {factor.interval[0]:.3g} to {factor.interval[1]:.3g}: {origin}"
        for factor in transfer.factors
        if factor.told >= TOLD
    }
    told = ", ".join(f"{f.lever} x {f.factor:.3g}" for f in transfer.factors if f.told >= TOLD)
    kept = ", ".join(str(f.lever) for f in transfer.factors if f.told < TOLD)
    sentence = (
        f"Measured ({origin}): {told or 'no factor by itself'}; what these leave is a correction "
        f"over size, which fades away from what was measured."
        + (f" Hardly told by these data: {kept}." if kept else "")
        + (f" It may not hold for these settings: {'; '.join(otherwise)}." if otherwise else "")
    )
    found = replace(
        topology,
        sources={**topology.sources, **measured},
        assumptions=(*topology.assumptions, sentence),
    )
    return with_arcs(found, topology.arcs)

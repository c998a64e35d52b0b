"""Times of one collective at several sizes, as nccl-tests would print them.

nccl-tests repeats a collective many times without waiting in between, and divides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import simpy

from perfmodel.calibrate import Profile, draws, interval_s, measured_at
from perfmodel.calibrate.apply import apply, describe_beyond
from perfmodel.calibrate.profile import Rows
from perfmodel.collectives.algorithms.own import (
    A_FUNCTION,
    MOST_CHECKED,
    OWN,
    check_data,
    plan_own,
)
from perfmodel.collectives.catalog import bus_factor, maker
from perfmodel.errors import Fault, ScheduleError, allowed_names, raise_faults, refuse_if
from perfmodel.library.corrections import CollectiveContext, datasheet_interval_s
from perfmodel.library.lowering.lower import Algorithm, whole_items
from perfmodel.library.machine import make_machine, observed_time_s
from perfmodel.library.model import load_library
from perfmodel.library.settings import LibrarySettings
from perfmodel.memo import with_progress
from perfmodel.own_functions import check_function, name_of
from perfmodel.simulate.engine.engine import (
    BY_SENDS,
    Fidelity,
    has_shared_cores,
    network_class,
    on_network,
    uses_sockets,
)
from perfmodel.simulate.network import Network
from perfmodel.simulate.uncontended import MESSAGES, UncontendedTimer, hidden_s
from perfmodel.studies.run.resolve.machine import check_message_size
from perfmodel.studies.run.steps.routing_cost import describe_routing, hash_cost
from perfmodel.topology.model import Topology

PROFILE_DRAWS = 40
"""Draws of a profile that an interval rests on."""


def collective_rows(
    topology: Topology,
    *,
    op: str = "all_reduce",
    sizes: Iterable[int],
    algorithm: Algorithm = "auto",
    library: str = "nccl",
    settings: LibrarySettings | None = None,
    profile: Profile | None = None,
    profile_rows: Rows | None = None,
    fidelity: Fidelity = "flow",
    progress: Callable[[int, int], None] | None = None,
    nominal: UncontendedTimer | None = None,
) -> list[dict[str, Any]]:
    """Time one collective over all ranks of a machine at several sizes.

    Parameters
    ----------
    topology : Topology
    op : str
    sizes : iterable of int
        As nccl-tests counts them; bytes.
    algorithm : str or callable
        "auto" for the library's own, a name of `perfmodel.collectives.catalog`, or a function of
        (ranks, nbytes) that returns a Schedule.
    library : str
    settings : LibrarySettings, optional
        Version and environment of the library.
    profile : Profile, optional
        Measured numbers instead of datasheets'; they bring an interval with them. Without one, the
        interval is the spread of recorded sweeps about predictions from datasheets.
    profile_rows : {"library", "schedule"}, optional
        Numbers of the profile to use: of the library's own collective (default, if measured), or
        of our schedule.
    fidelity : {"flow", "message", "reference"}
    progress : callable, optional
        Called with (done, total).
    nominal : UncontendedTimer, optional
        That of `nominal_timer`, if it serves other questions too.

    Returns
    -------
    list of dict
        One row per size with nbytes, time_s, algbw_Bps, busbw_Bps, algorithm, protocol, interval_s.

    Raises
    ------
    InputError
        A size or fidelity that there is not, too many ranks for a fidelity that simulates sends,
        or rows that the profile does not have; what is wrong with a function.
    """
    all_sizes = list(sizes)
    _check_arguments(all_sizes, fidelity)
    nominal = nominal or nominal_timer(topology, library, settings)
    timer = (
        nominal
        if profile is None
        else UncontendedTimer(apply(profile, nominal.machine, rows=profile_rows))
    )
    machine, named, size = timer.machine, find_named(op, algorithm), len(topology.ranks)
    numbers_of = named if isinstance(named, str) else OWN if named else None
    alternatives = []
    if (
        profile
        and size > 1
        and measured_at(profile, size, op, rows=profile_rows, algorithm=numbers_of)
    ):
        alternatives = [
            UncontendedTimer(apply(each, nominal.machine, rows=profile_rows))
            for each in draws(profile, PROFILE_DRAWS, seed=0)
        ]
    pairs = [(op, nbytes) for nbytes in all_sizes]
    sockets = named is None and uses_sockets(machine, fidelity)
    if fidelity in BY_SENDS:
        check_message_size(machine, pairs, fidelity=fidelity, algorithm=named, sockets=sockets)
    elif has_shared_cores(machine) and sockets:
        check_message_size(machine, pairs, "nodes", sockets=True, by_cores=True)
    # Schedules of our own are not Gloo's loops.
    network = on_network if named is None else _on_plain_network
    rows = []
    for nbytes in with_progress(all_sizes, progress, len(all_sizes)):
        row = network(timer, fidelity, partial(_time_row, op=op, nbytes=nbytes, algorithm=named))
        ends_s = interval_s(
            [observed_s(each, op, nbytes, named) for each in alternatives], row["time_s"]
        )
        if profile is None and named is None and library == "nccl" and size > 1:
            ends_s = datasheet_interval_s(topology, op, nbytes, row["time_s"])
        rows.append(row | {"interval_s": ends_s and list(ends_s)})
        for each in (timer, *alternatives):  # no other size asks for these
            each.forget()
    return rows


def collective_answer(
    topology: Topology,
    *,
    op: str,
    sizes: Sequence[int],
    algorithm: Algorithm,
    library: str,
    settings: LibrarySettings | None,
    profile: Profile | None,
    profile_rows: Rows | None,
    fidelity: Fidelity,
    progress: Callable[[int, int], None] | None,
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return `collective_rows`, and what is to be said of them."""
    nominal, largest = nominal_timer(topology, library, settings), max(sizes)
    try:
        rows = collective_rows(
            topology,
            op=op,
            sizes=sizes,
            algorithm=algorithm,
            library=library,
            settings=settings,
            profile=profile,
            profile_rows=profile_rows,
            fidelity=fidelity,
            progress=progress,
            nominal=nominal,
        )
    except ScheduleError as error:  # of a function of the user's it says all
        refuse_if(
            isinstance(algorithm, str),
            "algorithm",
            repr(algorithm),
            f"one for this machine: {error}",
        )
        raise
    return rows, (
        *check_own(topology, op=op, nbytes=largest, algorithm=algorithm, library=library),
        *network_notes(nominal, settings, op=op, nbytes=largest, algorithm=algorithm),
        *profile_notes(topology, op=op, sizes=sizes, profile=profile, rows=profile_rows),
    )


def nominal_timer(
    topology: Topology, library: str = "nccl", settings: LibrarySettings | None = None
) -> UncontendedTimer:
    """Timer of a machine without measured corrections."""
    return UncontendedTimer(make_machine(topology, load_library(library), settings=settings))


def profile_notes(
    topology: Topology,
    *,
    op: str,
    sizes: Iterable[int],
    profile: Profile | None,
    rows: Rows | None = None,
) -> tuple[str, ...]:
    """Say what is beyond what a profile, if there is one, was measured with."""
    ranks, hosts = len(topology.ranks), topology.hosts
    requests = [CollectiveContext(op, nbytes, ranks, hosts) for nbytes in sizes]
    return describe_beyond(profile, requests, rows) if profile and ranks > 1 else ()


def network_notes(
    nominal: UncontendedTimer,
    settings: LibrarySettings | None,
    *,
    op: str,
    nbytes: int,
    algorithm: Algorithm = "auto",
) -> tuple[str, ...]:
    """Say what the maker of the network requires NCCL to be set to, beyond the user's `settings`.

    And name the routing of the fabric where its static hash makes a collective much slower.
    """
    machine = nominal.machine
    if machine.topology.hosts < 2:
        return ()
    own = (settings or LibrarySettings()).env.items()
    added = sorted(f"{name}={value}" for name, value in machine.settings.env.items() - own)
    required = f"NCCL is set as the maker of the network requires: {', '.join(added)}."
    ranks, named = range(len(machine.topology.ranks)), find_named(op, algorithm)
    routing = describe_routing(
        hash_cost(nominal, nominal.best(op, nbytes, ranks, 0, named)[0]), nbytes, op
    )
    return (required, *routing) if added else routing


def find_named(op: str, algorithm: object) -> Algorithm | None:
    """Return an algorithm by its name in the catalogue, or a function as it is; None for "auto".

    Raises `InputError`: an unknown name, or neither a name nor a function.
    """
    if algorithm == "auto":
        return None
    if isinstance(algorithm, str):
        name = algorithm.replace("-", "_")
        maker(op, name)  # raises for an unknown name, also on a single rank
        return name
    check_function(
        "algorithm", algorithm, "(ranks, nbytes)", f"'auto', a name such as 'ring', or {A_FUNCTION}"
    )
    return algorithm  # type: ignore[return-value]  # its result is checked when it is called


def check_own(
    topology: Topology, *, op: str, nbytes: int, algorithm: object, library: str
) -> tuple[str, ...]:
    """Check the data that a function of the user's leaves behind; say what its times rest on.

    Returns nothing for an algorithm by name.

    Raises
    ------
    InputError
        Neither a name nor a function, or what is wrong with the function.
    DataMismatch
        Wrong data; names rank and chunk.
    """
    named, ranks = find_named(op, algorithm), len(topology.ranks)
    if named is None or isinstance(named, str) or ranks < 2:
        return ()
    name, checked = name_of(named), check_data(plan_own(named, ranks, whole_items(nbytes), op))
    laid = (
        f"{name} sends from rank to rank over the nearest links, with what the protocols of "
        f"{library} cost with any algorithm; what the library tunes for its own is left out."
    )
    unchecked = f"{name} has more than {MOST_CHECKED:,} sends: perfmodel.verify checks its data."
    return (laid,) if checked else (laid, unchecked)


def _check_arguments(sizes: Iterable[int], fidelity: str) -> None:
    """Refuse what the types do not allow: callers from Python are not checked by a parser."""
    faults = [
        Fault(f"sizes.{at}", repr(nbytes), "a whole number of bytes above zero")
        for at, nbytes in enumerate(sizes)
        if isinstance(nbytes, bool) or not isinstance(nbytes, int | np.integer) or nbytes < 1
    ]
    names = get_args(Fidelity)
    if fidelity not in names:
        faults.append(Fault("fidelity", repr(fidelity), allowed_names(names, str(fidelity))))
    raise_faults(faults)


def _on_plain_network(
    timer: UncontendedTimer, fidelity: Fidelity, run: Callable[[Network], dict[str, Any]]
) -> dict[str, Any]:
    return run(network_class(fidelity)(simpy.Environment(), timer))


def _time_row(
    network: Network, op: str, nbytes: int, algorithm: Algorithm | None
) -> dict[str, Any]:
    env, timer = network.env, network.timer
    ranks = range(len(timer.machine.topology.ranks))
    time_s, names = 0.0, ("none", "none")
    if len(ranks) > 1:
        lowered = timer.best(op, nbytes, ranks, 0, algorithm)[0]
        at_once = timer.lower(op, nbytes, (ranks,)) if op in MESSAGES else [lowered]
        env.run(until=network.launch(at_once))
        time_s = observed_time_s(
            timer.machine, float(env.now) - hidden_s(timer, lowered, op, ranks)
        )
        names = lowered.schedule.algorithm, lowered.protocol
    algbw_Bps = nbytes / time_s if time_s > 0 else 0.0
    return {
        "nbytes": nbytes,
        "time_s": time_s,
        "algbw_Bps": algbw_Bps,
        "busbw_Bps": algbw_Bps * bus_factor(op, len(ranks)),
        "algorithm": names[0],
        "protocol": names[1],
    }


def observed_s(
    timer: UncontendedTimer, op: str, nbytes: int, algorithm: Algorithm | None = None
) -> float:
    """Time that a benchmark reports of a collective of all ranks; seconds."""
    ranks = range(len(timer.machine.topology.ranks))
    lowered, alone_s = timer.best(op, nbytes, ranks, 0, algorithm)
    return observed_time_s(timer.machine, alone_s - hidden_s(timer, lowered, op, ranks))

"""``pm.collective``, ``pm.diagnose`` and ``pm.verify``: times, measured ones, and right data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from perfmodel.api.questions import as_profile, as_sizes, as_topology, python_names
from perfmodel.errors import Fault, raise_faults, refuse_if
from perfmodel.own_functions import check_function

if TYPE_CHECKING:
    import networkx as nx

    from perfmodel.api.results import CollectiveTimes, Diagnoses
    from perfmodel.calibrate import Profile
    from perfmodel.collectives.schedule import Schedule
    from perfmodel.collectives.verify import Verified
    from perfmodel.collectives.verify_table import VerifiedRow
    from perfmodel.library.settings import LibrarySettings
    from perfmodel.simulate.engine.engine import Fidelity
    from perfmodel.topology.model import Topology

SIZES = tuple(4**power for power in range(5, 16))
"""1 KiB to 1 GiB."""
RANKS = range(2, 18)
"""Numbers of ranks that are tried by default: powers of two, primes and others."""


@overload
def verify(algorithm: Schedule, *, orders: int = 3, seed: int = 0, **own: Any) -> Verified: ...
@overload
def verify(
    algorithm: str | Callable[[int, int], Schedule],
    *,
    ranks: Iterable[int] = RANKS,
    orders: int = 3,
    seed: int = 0,
    **own: Any,
) -> list[VerifiedRow]: ...
@python_names
def verify(
    algorithm: Any, *, ranks: Iterable[int] = RANKS, orders: int = 3, seed: int = 0, **own: Any
) -> Verified | list[VerifiedRow]:
    """Move real arrays along an algorithm's sends, in random legal orders, and check the result.

    Parameters
    ----------
    algorithm : callable, str or Schedule
        A function of (ranks, nbytes) that returns a Schedule, the name of an algorithm, or a
        schedule, which is checked as it is.
    ranks : iterable of int
        Numbers of ranks, each with several sizes of buffer. Those for which the function raises
        `perfmodel.ScheduleError` are left out.
    orders : int
        How many random legal orders of each schedule to try.
    seed : int
        Other orders for each; the same for the same.
    **own
        As of `perfmodel.collectives.verify_table.verify_table`, or of
        `perfmodel.collectives.verify.verify` for a schedule.

    Returns
    -------
    list of VerifiedRow, or Verified for a schedule
        What was checked, with the bytes that the busiest rank sends.

    Raises
    ------
    DataMismatch
        Wrong data; names rank and chunk, what was found and what was wanted.
    InputError
        No such algorithm, or what is wrong with the function.
    ScheduleError
        Sends of one round that race.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.verify("ring", ranks=[4])[0].bytes_per_rank_over_nbytes
    1.5
    """
    from perfmodel.collectives.schedule import Schedule
    from perfmodel.collectives.verify import verify as verify_schedule
    from perfmodel.collectives.verify_table import verify_table

    if isinstance(algorithm, Schedule):
        return verify_schedule(algorithm, orders=orders, seed=seed, **own)
    if not isinstance(algorithm, str):
        check_function(
            "algorithm",
            algorithm,
            "(ranks, nbytes)",
            "a function of (ranks, nbytes) that returns a Schedule, a name, or a Schedule",
        )
    counts = [ranks] if isinstance(ranks, int) else list(ranks)
    refuse_if(
        not all(isinstance(count, int) and count > 0 for count in counts),
        "ranks",
        repr(ranks),
        "numbers of ranks, such as range(2, 18)",
    )
    return verify_table(algorithm, counts, orders=orders, seed=seed, **own)


@python_names
def collective(
    topology: Topology | nx.Graph[Any] | str | Path,
    *,
    nodes: int = 1,
    fabric: str | Mapping[str, Any] | Callable[[int, int], nx.Graph[Any]] | None = None,
    gpus_per_node: int | None = None,
    op: str = "all_reduce",
    sizes: Any = SIZES,
    algorithm: str | Callable[[int, int], Schedule] = "auto",
    library: str = "nccl",
    settings: LibrarySettings | None = None,
    version: str | None = None,
    env: Mapping[str, str] | None = None,
    profile: Profile | str | Path | None = None,
    profile_rows: Any = None,
    fidelity: Fidelity = "flow",
    progress: Callable[[int, int], None] | None = None,
) -> CollectiveTimes:
    """Time one collective over all GPUs of a machine, as nccl-tests would print it.

    Parameters
    ----------
    topology : Topology, networkx.Graph, str or Path
        A machine, its graph (or a file of it), or the name or file of a node, with `nodes`,
        `fabric` and `gpus_per_node`, as of `perfmodel.topology`.
    op : str
        Such as "all_reduce" or "all-gather".
    sizes : int, str, or several of them
        Bytes, or text such as "1 MiB"; default: 1 KiB to 1 GiB.
    algorithm : str or callable
        "auto", the name of an algorithm, or a function of (ranks, nbytes) that returns a Schedule.
        Its messages take the nearest links between their ranks, with the costs that the library's
        protocols have for any algorithm.
    library : str
        "nccl", "gloo", "mpi" or "plain".
    settings : LibrarySettings, optional
        Version and environment of the library; or `version` and `env`, of NCCL.
    profile, profile_rows, fidelity, progress
        As of `perfmodel.studies.run.collective.collective_rows`.

    Returns
    -------
    CollectiveTimes
        A list of rows with nbytes, time_s, algbw_Bps, busbw_Bps, algorithm, protocol, interval_s.

    Raises
    ------
    InputError
        Arguments that there are not, or an algorithm by name that cannot have so many ranks.
    ScheduleError
        What is not well formed in the schedule of a function.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.collective("dgx-a100", sizes=["1 MiB", "1 GiB"])[1]["algorithm"]
    'ring'
    """
    from perfmodel.api.results import CollectiveTimes
    from perfmodel.report.common.document import count_ranks
    from perfmodel.studies.run.collective import collective_answer

    machine, listed, measured = (
        as_topology(topology, nodes, fabric, gpus_per_node),
        as_sizes(sizes),
        as_profile(profile),
    )
    name = op.replace("-", "_")
    rows, notes = collective_answer(
        machine,
        op=name,
        sizes=listed,
        algorithm=algorithm,
        library=library,
        settings=_nccl_settings(library, settings, version, env),
        profile=measured,
        profile_rows=profile_rows,
        fidelity=fidelity,
        progress=progress,
    )
    return CollectiveTimes(
        rows, f"{name.replace('_', '-')} on {count_ranks(machine)} of {machine.name}", notes
    )


@python_names
def diagnose(
    log: str | Path,
    topology: str | Path,
    *,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    fabric: str | None = None,
    op: str | None = None,
    version: str | None = None,
    env: Mapping[str, str] | None = None,
    profile: Profile | str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnoses:
    """Say whether a log of nccl-tests is as expected of a machine, and what to look at if not.

    Parameters
    ----------
    log : str or Path
        What nccl-tests printed, with NCCL_DEBUG=INFO or without.
    topology : str or Path
        The machine as it should be: a name or a file.
    nodes, gpus_per_node, fabric, op : optional
        What the log does not say.
    version, env : optional
        Of NCCL, beside those that the log states.
    profile : str, Path or Profile, optional
        Measured when the machine was well.
    progress : callable, optional
        Called with (tables done, tables in all).

    Returns
    -------
    Diagnoses
        A list with a `perfmodel.validate.diagnose.Diagnosis` of each table of the log.
    """
    from perfmodel.api.results import Diagnoses
    from perfmodel.calibrate.transfer.inputs import MachineRequest
    from perfmodel.validate.diagnose import diagnose_log

    return Diagnoses(
        diagnose_log(
            Path(log),
            MachineRequest(str(topology), nodes, gpus_per_node, fabric),
            op=op,
            settings=_nccl_settings("nccl", None, version, env),
            profile=as_profile(profile),
            progress=progress,
        )
    )


def _nccl_settings(
    library: str,
    settings: LibrarySettings | None,
    version: str | None,
    env: Mapping[str, str] | None,
) -> LibrarySettings | None:
    """Settings as an object, or of NCCL's version and environment; not both."""
    from perfmodel.library.settings import settings_of

    fields = {name: value for name, value in {"version": version, "env": env}.items() if value}
    if not fields:
        return settings
    raise_faults(
        Fault(name, repr(value), "nothing beside settings, and only with library 'nccl'")
        for name, value in fields.items()
        if settings is not None or library != "nccl"
    )
    return settings_of(version=version, env=dict(env or {}), fields=("version", "env"))

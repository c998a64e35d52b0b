"""The call that a worker runs: the figures of one variant."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.errors import PerfmodelError
from perfmodel.files import attributes
from perfmodel.scenario import Scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result.model import Result

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

FIGURES = (
    "step_time_s",
    "low_s",
    "high_s",
    "compute_s",
    "comm_s",
    "exposed_comm_s",
    "samples_per_s",
    "gpus",
    "bottleneck",
    "memory_bytes",
    "fits",
    "tight",
    "routing_cost",
)
"""Columns of an answered variant."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Figures of one variant; times in seconds. None where it failed, and then `message` says why.

    Parameters
    ----------
    status : {"ok", "failed"}
    message : str
    step_time_s, low_s, high_s : float or None
        The step, and its 80 % interval where one is known.
    compute_s, comm_s, exposed_comm_s, samples_per_s : float or None
        As `perfmodel.studies.run.result.model.SizeResult` has them.
    gpus : int or None
    bottleneck : str or None
    memory_bytes : float or None
        On the fullest GPU.
    fits : bool or None
    tight : bool or None
        Whether it fits, but not with what CUDA, NCCL and the allocator take beside it.
    routing_cost : float or None
        How many times as long the largest all-reduce takes as without collisions in the fabric.
    """

    status: Literal["ok", "failed"]
    message: str = ""
    step_time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    compute_s: float | None = None
    comm_s: float | None = None
    exposed_comm_s: float | None = None
    samples_per_s: float | None = None
    gpus: int | None = None
    bottleneck: str | None = None
    memory_bytes: float | None = None
    fits: bool | None = None
    tight: bool | None = None
    routing_cost: float | None = None

    @property
    def as_row(self) -> dict[str, Any]:
        """By name; status and message last."""
        row = asdict(self)
        return {
            **{key: row[key] for key in FIGURES},
            "status": self.status,
            "message": self.message,
        }


def answer(scenario: Scenario, profile: Profile | None = None) -> Answer:
    """Run a scenario; an error becomes the message of a failed answer.

    Parameters
    ----------
    scenario : Scenario
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    """
    try:
        return _from_result(run_scenario(scenario, profile=profile, with_first=False))
    except PerfmodelError as error:
        return Answer("failed", str(error))
    except Exception as error:  # noqa: BLE001  (one variant must not stop the others)
        return Answer("failed", f"{type(error).__name__}: {error}")


def _from_result(result: Result) -> Answer:
    point = result.main
    low_s, high_s = point.interval_s or (None, None)
    return Answer(
        "ok",
        low_s=low_s,
        high_s=high_s,
        memory_bytes=point.memory.total_bytes,
        fits=point.memory.fits,
        tight=point.memory.tight,
        routing_cost=result.routing_cost,
        **attributes(
            point, "step_time_s compute_s comm_s exposed_comm_s samples_per_s gpus bottleneck"
        ),
    )

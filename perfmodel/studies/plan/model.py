"""The result of a plan: options, answers, upgrades. Seconds, kWh, one currency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from perfmodel.studies.run.result import Interval
from perfmodel.workload.model import Sample

Status = Literal["ok", "too big", "failed"]


@dataclass(frozen=True, slots=True)
class Step:
    """A training step of one candidate at one size, as `perfmodel run` predicts it.

    `efficiency` is throughput per GPU over that of the base that the plan names; `mfu` is model
    FLOPs utilisation: three times the forward products of the batch over the dense peak.
    `tight`: it fits, but not with what CUDA, NCCL and the allocator take beside it.
    `routing_cost`: times as long as the largest all-reduce takes without collisions in the fabric.
    `rests_on`: which recorded trainings are near, in words.
    """

    step_time_s: float
    interval_s: Interval | None
    samples_per_s: float
    global_batch: int
    exposed_comm_s: float
    bottleneck: str
    memory_bytes: float
    fits: bool
    efficiency: float | None = None
    mfu: float | None = None
    tight: bool = False
    routing_cost: float = 1.0
    rests_on: str | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """Nodes of a spot offer: each stays and is away for so long on average, and may fail.

    `mtbf_s`: mean time between failures of one node that stays.
    """

    nodes: int
    stays_s: float
    away_s: float
    mtbf_s: float


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How a job on some nodes fails and recovers; times in seconds.

    `mtbf_s`: mean time between failures of the whole job, or changes of its capacity.
    `write_s`: time to write a checkpoint, in which training stands still.
    `restart_s`: from a failure to the first new step.
    `interval_s`: training time between checkpoints.
    `checkpoint_steps`: steps from checkpoint to checkpoint.
    `capacity`: None where all nodes stay. `share`: of them is there, on average.
    """

    mtbf_s: float
    write_s: float
    restart_s: float
    interval_s: float
    checkpoint_steps: int | None = None
    capacity: Capacity | None = None
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """Wall times of simulated trainings; seconds.

    `mean_s`, `error_s`: mean, and its standard error.
    `low_s`, `high_s`: 80 % of trainings end between them.
    `failures`: failures per training, on average.
    """

    runs: int
    mean_s: float
    error_s: float
    low_s: float
    high_s: float
    failures: float


@dataclass(frozen=True, slots=True)
class Training:
    """A whole training: the target's samples, with failures and checkpoints.

    `samples`: that it takes at this global batch.
    `work_s`: steps without failures and checkpoints.
    `wall_s`: expected time from start to end.
    `wall_interval_s`: 80 %, of the step time and of the number of failures together.
    `goodput`: `work_s` over `wall_s`.
    `upkeep`: None where nothing fails.
    `simulated`: at the likely step time.
    """

    samples: float
    steps: int
    work_s: float
    wall_s: float
    wall_interval_s: Interval | None
    goodput: float
    upkeep: Upkeep | None = None
    simulated: Simulated | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a training in the plan's currency, None where no price is given.

    `machines`: rent, or the share of the purchase that its hours are.
    `energy`: electricity; 0 where none is charged.
    `interval`: of the total, from the interval of the wall time.
    `per_step`: total over all steps, the work lost to failures included.
    `outlay`: to buy the nodes.
    `energy_kWh`, `power_W`: with the building's losses (PUE); None where no power is known.
    `price_per_gpu_hour`: of the machines, an upgrade's rent included.
    """

    machines: float | None
    energy: float | None
    interval: Interval | None
    per_step: float | None
    outlay: float | None
    energy_kWh: float | None
    power_W: float | None
    price_per_gpu_hour: float | None = None

    @property
    def total(self) -> float | None:
        """Machines and energy."""
        return None if self.machines is None else self.machines + (self.energy or 0.0)


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One candidate at one size.

    `reason` says why it cannot train: what did not fit or was not found. An option that does not
    fit memory still has its (hypothetical) step.
    """

    candidate: str
    node: str
    fabric: str
    nodes: int
    gpus: int | None
    status: Status
    reason: str = ""
    step: Step | None = None
    training: Training | None = None
    bill: Cost | None = None

    @property
    def wall_s(self) -> float:
        """Expected time to train; only where `status` is "ok"."""
        assert self.training is not None
        return self.training.wall_s

    @property
    def cost(self) -> float | None:
        """What the training costs, if that is known."""
        return None if self.bill is None else self.bill.total


@dataclass(frozen=True, slots=True)
class Answers:
    """Options that answer a question, or None where none does or the question is not asked.

    `pareto` is the front of wall time against cost; `ladder` the smallest cluster by deadline.
    """

    smallest_in_time: PlanOption | None
    cheapest_in_time: PlanOption | None
    fastest_in_budget: PlanOption | None
    fastest: PlanOption | None
    cheapest: PlanOption | None
    pareto: tuple[PlanOption, ...]
    ladder: tuple[PlanOption, ...]


Pays = Literal["in this training", "later", "not in its life", "never", "no price", "unknown"]
"""When an upgrade is paid back: never where it saves nothing, not in its life where that of a
purchase ends before; unknown where there is no cost to compare or the upgrade fails."""


@dataclass(frozen=True, slots=True)
class UpgradeOutcome:
    """An upgrade of one option.

    `before`, `after`: `after` may have failed.
    `saved_s`: saved wall time of a training.
    `saved`: saved cost of a training, the rent of the upgrade deducted.
    `price`: once, for the whole cluster.
    `payback_s`: training time, with the upgrade, until what it saves is its price; 0 for one that
        is rented and saves more than it costs; None for never.
    """

    upgrade: str
    before: PlanOption
    after: PlanOption
    saved_s: float | None
    saved: float | None
    price: float | None
    payback_s: float | None
    pays: Pays


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What one assumption makes of the best option, where it is worse and where it is better.

    `labels`: what worse and better are. `wall_s`, `cost`: of both; None where no price is known.
    """

    what: str
    labels: tuple[str, str]
    wall_s: tuple[float, float]
    cost: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The answer to a scenario's `plan:` section.

    Parameters
    ----------
    target : str
        In words.
    samples : Sample
        What one sample is.
    efficiency_base : str
        What efficiency is relative to, in words.
    sensitivities : tuple of Sensitivity
        Of the best option, the largest effect first.
    cautions : tuple of str
        The assumptions that no reader should miss.
    """

    scenario: str
    question: str
    workload: str
    target: str
    samples: Sample
    currency: str | None
    deadline_s: float | None
    budget: float | None
    efficiency_base: str
    options: tuple[PlanOption, ...]
    answers: Answers
    outcomes: tuple[UpgradeOutcome, ...]
    cautions: tuple[str, ...]
    assumptions: tuple[str, ...]
    sources: Mapping[str, str]
    provenance: Mapping[str, str]
    sensitivities: tuple[Sensitivity, ...] = ()

    @property
    def best(self) -> PlanOption | None:
        """The option that answers the plan: the cheapest in time, or the cheapest."""
        answers = self.answers
        if self.deadline_s is not None:
            return answers.cheapest_in_time or answers.smallest_in_time or answers.fastest
        return answers.cheapest or answers.fastest

    @property
    def usable(self) -> tuple[PlanOption, ...]:
        """Options that run and fit."""
        return tuple(option for option in self.options if option.status == "ok")

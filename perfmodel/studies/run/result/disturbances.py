"""What events and other jobs cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventCost:
    """Cost of one event or other job; times in seconds.

    `what`: description of the event.
    `without_s`: mean step time with all other disturbances, but not this one.
    `costs_s`: how much longer a step takes because of it, on average over the counted steps.
    """

    what: str
    without_s: float
    costs_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the last rank of a collective, over the counted steps; times in seconds.

    `last`: the rank or the class of ranks that came last most often.
    `share`: of the counted steps, those in which it was the last; 0 to 1.
    `waited_s`: how long the other ranks waited, on average.
    `longest_s`: how long the first one waited, at most.
    """

    collective: str
    bucket: int | None
    last: str
    share: float
    waited_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class BackgroundJobStep:
    """Another job on the same network; times in seconds.

    `step_time_s` is its mean while the main job's steps were counted; `alone_s` is its step on the
    same nodes with the network for itself.
    """

    name: str
    gpus: int
    step_time_s: float
    alone_s: float


@dataclass(frozen=True, slots=True)
class DisturbanceCost:
    """Cost of events and other jobs together; times in seconds.

    `steps_s`: the counted steps, one after the other; `SizeResult.step_time_s` is their mean.
    `undisturbed_s`: a step without any of the events.
    `mean_interval_s`: 80 % interval of the mean step under jitter; None where nothing is random.
    `events`: in the order of the scenario.
    `waits`: in the order of the step.
    """

    steps_s: tuple[float, ...]
    undisturbed_s: float
    mean_interval_s: tuple[float, float] | None
    events: tuple[EventCost, ...]
    waits: tuple[Wait, ...]
    jobs: tuple[BackgroundJobStep, ...] = ()

    @property
    def costs_s(self) -> float:
        """How much longer a step takes with all disturbances, on average."""
        return sum(self.steps_s) / len(self.steps_s) - self.undisturbed_s

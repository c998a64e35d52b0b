"""Time one simulation of a scenario's largest size, without intervals and limits.

    python reports/benchmarks/crowded/one_simulation.py SCENARIO [FIELD=VALUE ...]

Prints CPU seconds of building and of simulating, the step, the tasks of its plan and the peak
memory of the process.
"""

from __future__ import annotations

import resource
import sys
import time

from perfmodel.scenario import load_scenario
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.steps.sized_job import simulate_reported, size_job


def main(name: str, overrides: list[str]) -> str:
    """Build and simulate once."""
    scenario = load_scenario(name, overrides)
    begun_s = time.process_time()
    inputs = resolve_scenario(scenario, None, None)
    sized = size_job(inputs, inputs.sizes[-1])
    built_s = time.process_time()
    reported = simulate_reported(sized)
    peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (
        f"built {built_s - begun_s:.2f} s, simulated {time.process_time() - built_s:.2f} s, "
        f"a step of {reported.step_s:.4g} s, {len(reported.plan.tasks):,} tasks, "
        f"{peak_bytes / 2**30:.2f} GiB"
    )


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2:]))  # noqa: T201

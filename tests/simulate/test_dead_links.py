"""Links that carry nothing: infinite times, but no NaN and no warning anywhere in a run."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.arrays import sending_s
from perfmodel.errors import SimulationError
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario


def test_time_to_send_over_dead_links() -> None:
    times = sending_s(np.array([0.0, 0.0, 3.0, 3.0]), np.array([0.0, 2.0, 0.0, 2.0]))
    assert times.tolist() == [0.0, 0.0, math.inf, 1.5]
    assert sending_s(np.array([6.0]), np.array([2.0, 0.0])).tolist() == [3.0, math.inf]


AT = st.sampled_from(["0 ms", "1 ms", "20 ms"])
EVENTS = st.one_of(
    st.builds(
        "{{lose: {{nic: n1/nic{}, at: {}, reroute_after: {}}}}}".format,
        st.integers(0, 3),
        AT,
        st.sampled_from(["0 ms", "5 ms"]),
    ),
    st.builds(
        "{{down: {{link: n0/nic{}, at: {}, reroute_after: 60 ms}}}}".format, st.integers(0, 3), AT
    ),
    st.builds(
        "{{degrade: {{link: n1/nic{}, by: {}}}}}".format,
        st.integers(0, 3),
        st.sampled_from([1, 2, 1000]),
    ),
)


@pytest.mark.slow
@settings(max_examples=10)
@given(
    st.lists(EVENTS, min_size=1, max_size=2),
    st.sampled_from(["Ring", "Tree"]),
)
def test_no_event_makes_nan(events: list[str], algorithm: str) -> None:
    changes = [
        "scale=null",
        "cluster.nodes=3",
        "model.name=resnet18",
        f"events=[{', '.join(events)}]",
        f"library.env={{NCCL_ALGO: {algorithm}}}",
    ]
    scenario = load_scenario("resnet50-dgx-a100", changes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = run_scenario(scenario).main
        except SimulationError:
            return  # a link that is dead for good: said in a sentence
    assert math.isfinite(result.step_time_s)
    assert result.exposed_comm_s >= 0

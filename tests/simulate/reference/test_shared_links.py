"""Max-min fairness by its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.library.lowering.lowered import Path
from perfmodel.simulate.reference import Flow, max_min_rates
from perfmodel.simulate.sharing.max_min import max_min_rates as of_arrays

LINKS = 6
PATHS = st.lists(
    st.tuples(
        st.lists(st.integers(0, LINKS - 1), min_size=1, max_size=4),
        st.one_of(st.just(math.inf), st.floats(0.1, 5.0)),
    ),
    min_size=1,
    max_size=12,
)


@given(st.lists(st.floats(0.5, 9.0), min_size=LINKS, max_size=LINKS), PATHS)
def test_each_flow_has_its_cap_or_a_full_link_on_which_nobody_has_more(
    bandwidth: list[float], paths: list[tuple[list[int], float]]
) -> None:
    """Bertsekas and Gallager, Data Networks, section 6.5.2: then rates are max-min fair."""
    flows = [Flow(Path(tuple(links), cap, 0.0), 1.0) for links, cap in paths]
    rates = max_min_rates(np.array(bandwidth), flows)
    used = np.zeros(LINKS)
    for flow in flows:
        np.add.at(used, list(flow.path.links), rates[flow])
    assert (used <= np.array(bandwidth) * (1 + 1e-12)).all()
    for flow in flows:
        bottlenecks = [
            link
            for link in flow.path.links
            if used[link] == pytest.approx(bandwidth[link], rel=1e-9)
            and all(
                rates[other] <= rates[flow] * (1 + 1e-9)
                for other in flows
                if link in other.path.links
            )
        ]
        assert bottlenecks or rates[flow] == flow.path.cap_Bps
    pointers = np.cumsum([0, *(len(links) for links, _ in paths)])
    arcs = np.concatenate([links for links, _ in paths])
    caps = np.array([cap for _, cap in paths])
    found = of_arrays(np.array(bandwidth), pointers, arcs, caps)
    assert found == pytest.approx([rates[flow] for flow in flows], rel=1e-9)

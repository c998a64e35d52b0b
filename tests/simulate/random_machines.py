"""Machines drawn at random, on which the models of timing are compared."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.topology.own_graph import topology_of
from tests.conftest import PLAIN_GPU


def random_library(
    credits: int = 1, *, in_order: bool = False, max_rate_Bps: float | None = None
) -> CommLibrary:
    """Bare links; so many sends of an edge under way, at most so fast."""
    plain = load_library("plain")
    changed = {"credits": credits, "max_rate": max_rate_Bps, "launch": 3e-6}
    simple = plain.protocols["simple"].model_copy(update=changed)
    return plain.model_copy(update={"protocols": {"simple": simple}, "in_order": in_order})


def random_machine(seed: int, ranks: int, *, mesh: bool = False, **library: Any) -> Machine:
    """GPUs and switches, joined at random by links of any speed and latency: a graph of one's own.

    `mesh`: a link from each GPU to each other one instead, so that no two edges share one.
    `library`: as for `random_library`.
    """
    rng = np.random.default_rng(seed)
    graph = nx.DiGraph(name="drawn")
    gpus = [f"gpu{number}" for number in range(ranks)]
    switches = [] if mesh else [f"switch{number}" for number in range(int(rng.integers(1, 5)))]
    graph.add_nodes_from(gpus, kind="gpu", model="a100-sxm4-80gb")
    graph.add_nodes_from(switches, kind="switch")
    pairs = list(itertools.combinations(gpus, 2)) if mesh else []
    if switches:
        pairs += [(name, switches[int(rng.integers(at))]) for at, name in enumerate(switches) if at]
        pairs += [(name, str(rng.choice(switches))) for name in gpus]
        pairs += [tuple(rng.choice([*gpus, *switches], 2, replace=False)) for _ in switches]
    for src, dst in itertools.chain.from_iterable(((a, b), (b, a)) for a, b in pairs):
        numbers = {"bandwidth": rng.uniform(1e9, 9e10), "latency": rng.uniform(0, 1e-5)}
        graph.add_edge(src, dst, kind="nvlink", **numbers)
    topology = replace(topology_of(graph), gpu=PLAIN_GPU)
    return Machine(topology, random_library(**library))


def machines(*, mesh: bool = False, in_order: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Arguments of `random_machine`: 2 to 16 GPUs with any library; short to print."""
    return st.fixed_dictionaries(
        {
            "seed": st.integers(0, 10**6),
            "ranks": st.integers(2, 16),
            "mesh": st.just(mesh),
            "credits": st.integers(1, 4),
            "in_order": st.just(in_order),
            "max_rate_Bps": st.sampled_from([None, 2e10]),
        }
    )

"""Hardware as a graph of devices and links; `templates.build.build_topology` makes it.

The package can be called, as ``perfmodel.topology("dgx-a100", nodes=2)``: a function of that name
beside it would be hidden as soon as anything here is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.topology.model import Topology


def build_cluster(
    node: str | Path,
    *,
    nodes: int = 1,
    fabric: str | Path | Mapping[str, Any] | None = None,
    gpus_per_node: int | None = None,
) -> Topology:
    """Build a machine, or a cluster of such machines with the routing usual on its network.

    Parameters
    ----------
    node : str or Path
        Name of a node template (`perfmodel topology list`), or its file.
    nodes : int
    fabric : str, Path or mapping, optional
        Network between the nodes, by name or file, or its kind with what differs from the kind's
        defaults: ``{"kind": "fat-tree", "oversubscription": 4.0}``; needed for more than one.
    gpus_per_node : int, optional
        Use only the first GPUs of each node.

    Raises
    ------
    InputError
        Unknown names, more GPUs than there are, several nodes without a fabric; every fault.

    Examples
    --------
    >>> import perfmodel
    >>> perfmodel.topology("dgx-a100", nodes=2, fabric="rail-optimised").name
    'dgx-a100 x 2'
    """
    from perfmodel.errors import Fault, InputError
    from perfmodel.files import validate_document
    from perfmodel.topology.templates.build import build_topology, with_usual_routing
    from perfmodel.topology.templates.spec import FabricSpec

    faults = []
    if not isinstance(node, str | Path):
        allowed = "a name such as 'dgx-a100', or a path"
        faults.append(Fault("topology", f"a {type(node).__name__}", allowed))
    if not isinstance(fabric, str | Path | Mapping | None):
        allowed = "a name, a path, or a mapping with its 'kind'"
        faults.append(Fault("fabric", f"a {type(fabric).__name__}", allowed))
    for name, number in (("nodes", nodes), ("gpus_per_node", gpus_per_node)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, Integral)):
            faults.append(Fault(name, repr(number), "a whole number"))
    if faults:
        raise InputError(faults)
    try:
        network: FabricSpec | str | None
        if isinstance(fabric, Mapping):
            network = validate_document(FabricSpec, dict(fabric))
        else:
            network = None if fabric is None else str(fabric)
        routed = with_usual_routing(str(node), network)
        return build_topology(str(node), hosts=nodes, fabric=routed, gpus_per_host=gpus_per_node)
    except InputError as error:
        names = {"hosts": "nodes", "gpus_per_host": "gpus_per_node"}
        faults = [replace(each, field=names.get(each.field, each.field)) for each in error.faults]
        raise InputError(faults) from None


class _CallablePackage(ModuleType):
    """A package that is called like `build_cluster`."""

    __call__ = staticmethod(build_cluster)

    def __repr__(self) -> str:
        return "<package 'perfmodel.topology'; perfmodel.topology('dgx-a100') builds a machine>"


_package: Any = sys.modules[__name__]
_package.__class__ = _CallablePackage

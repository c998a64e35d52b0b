"""Networks as people write them: "InfiniBand HDR", "RoCE v2 25 GbE", "AWS EFA (p4d.24xlarge)"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError

_NETWORKS = (
    (r"\befa\b|\bsrd\b", "efa"),
    (r"tcpxo|fastrak", "tcpxo"),
    (r"tcpx|gpudirect-tcp", "tcpx"),
    (r"omni[\s-]?path|\bopa\b", "omni-path"),
    (r"\btcp\b|(?<!across )(?<!between )(?<!two )\bsockets\b|ipoib", "tcp"),
    (r"roce", "roce"),
    (r"infini[\s-]?band|\bib\b|\b(?:edr|hdr|ndr|xdr|fdr|qdr)\b|connectx", "infiniband"),
    (r"rdma|slingshot", "roce"),
    (r"ethernet|\d\s*gbe\b|sr-iov|\bena\b|gvnic|virtio|eth\d", "tcp"),
)
_GENERATIONS = {"qdr": 32.0, "fdr": 54.5, "edr": 100.0, "hdr100": 100.0, "hdr": 200.0,
                "ndr200": 200.0, "ndr": 400.0, "xdr": 800.0}  # fmt: skip
"""InfiniBand of four lanes (two for those with a number), Gbit/s of data."""


@dataclass(frozen=True, slots=True)
class Networked:
    """What words say about the network; None where they say nothing.

    Parameters
    ----------
    kind : str or None
        None: no network.
    nic_Bps : float or None
    nics : int or None
    rate_source : str
    mtu : int or None
    gpudirect : bool or None
    across : bool
        Whether the NIC is under another CPU than the GPUs.
    racks : bool
        Whether NVLink joins hosts.
    assumptions : tuple of str
    """

    kind: str | None
    nic_Bps: float | None
    nics: int | None
    rate_source: str
    mtu: int | None
    gpudirect: bool | None
    across: bool
    racks: bool
    assumptions: tuple[str, ...] = ()


def network_in(words: str | None) -> Networked:
    """Read what joins hosts: "InfiniBand HDR", "AWS EFA (p4d.24xlarge)", "RoCE v2 25 GbE".

    Raises
    ------
    InputError
        Words that name no network that is known.
    """
    text = (words or "none").lower()
    kind = next((name for word, name in _NETWORKS if re.search(word, text)), None)
    racks = bool(re.search(r"mnnvl|multi-?node nvlink|nvl72", text))
    if kind is None and not racks and not re.fullmatch(r"\W*(none|no network|nan)?\W*", text):
        allowed = (
            "none, infiniband, roce, efa, tcp, tcpx, tcpxo or omni-path, in any usual spelling"
        )
        raise InputError(Fault("network", repr(words), allowed))
    several = re.search(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*g", text)
    single = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)\s*g(?:b|bps|be|bit/s|bps|b/s)?\b", text)
    name = re.search(r"\b(qdr|fdr|edr|hdr100|hdr|ndr200|ndr|xdr)\b", text)
    rate, source = None, ""
    if several or single:
        rate = float(several[2] if several else single[1])  # type: ignore[index]
        source = "as described"
    elif name:
        rate, source = _GENERATIONS[name[1]], f"InfiniBand {name[1].upper()}, 4 lanes"
    mtu = re.search(r"mtu\s*(?:of\s*)?(\d+)", text)
    return Networked(
        kind=kind,
        nic_Bps=None if rate is None else rate * 1e9 / 8,
        nics=int(several[1]) if several else None,
        rate_source=source,
        mtu=int(mtu[1]) if mtu else None,
        gpudirect=_gpudirect(text),
        across=bool(re.search(r"across|other socket|\bsys\b", text)),
        racks=racks,
        assumptions=_taken(text, kind),
    )


def _taken(text: str, kind: str | None) -> tuple[str, ...]:
    vague = re.search(r"slingshot|rdma", text) if kind == "roce" and "roce" not in text else None
    return (f"assumption: {vague[0]} taken as RoCE v2",) if vague else ()


def _gpudirect(text: str) -> bool | None:
    if re.search(r"(gpudirect|gdr)( rdma)? (disabled|off)|(no|without) (gpudirect|gdr)", text):
        return False
    return True if re.search(r"gdr|gpudirect(?!-tcp)", text) else None

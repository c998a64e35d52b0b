"""The section on parameter servers says what is true of its mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfmodel.report.common.html import render_block
from perfmodel.report.run.parallelism import servers_section
from perfmodel.studies.run.result import Result
from perfmodel.studies.run.usage import ServerUse, Staleness

LATE = Staleness(1.5, 1, 3, 5, 7, ((0, 0, 0.5), (1, 7, 0.5)), None)


def use(mode: str) -> ServerUse:
    return ServerUse(
        mode=mode,
        workers=16,
        updates_per_s=5.0,
        updates_interval_per_s=None,
        most_updates_per_s=6.0,
        bound_by="computing",
        worker_wait=0.1,
        fastest_s=0.1,
        slowest_s=0.2,
        servers=("server 0",),
        server_busy=(0.2,),
        server_bytes=1e9,
        queue_wait_s=1e-3,
        staleness=LATE,
    )


@pytest.mark.parametrize(("mode", "late"), [("synchronous", False), ("asynchronous", True)])
def test_only_servers_that_do_not_wait_have_late_gradients(
    with_main: Callable[..., Result], mode: str, late: bool
) -> None:
    section = servers_section(with_main(server_use=use(mode)).main)
    assert section is not None
    page = render_block(section)
    assert ("costs in learning" in page) == late
    assert ("How late gradients are" in page) == late
    assert ("No gradient is stale" in page) != late

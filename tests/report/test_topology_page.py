"""The page of a machine: sections that say something, in words of that machine."""

from __future__ import annotations

import pytest

from perfmodel.report.topology import topology_html
from perfmodel.topology.templates.build import build_topology


def test_a_rack_whose_paths_do_not_fit_has_no_section_of_them() -> None:
    assert "Paths inside a host" not in topology_html(build_topology("gb200-nvl72"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "present", "absent"),
    [
        ("dgx-a100", ["NV12: 12 lanes", "PIX: "], ["PHB: "]),
        ("l40s-x8", ["SYS: "], ["NV12: ", "lanes between"]),
        ("cpu-loopback", ["PHB: ", "process memory"], ["NV12: ", "gpu memory", "GPUs"]),
    ],
)
def test_explains_the_path_types_of_the_machine_alone(
    name: str, present: list[str], absent: list[str]
) -> None:
    page = topology_html(build_topology(name))
    body = page[page.rindex("Machine and links") :]
    assert all(text in body for text in present)
    assert not [text for text in absent if text in body]

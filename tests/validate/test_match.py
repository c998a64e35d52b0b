"""The machine of a recorded sweep: every shipped sweep, and descriptions that no sweep has."""

import pytest

from perfmodel.calibrate.readers import SweepRow
from perfmodel.topology.from_text.gpu_text import read_gpu
from perfmodel.topology.routing.router import Router
from perfmodel.validate.match import Matched, match
from perfmodel.validate.read import Sweep, read_sweeps, sweeps_folder
from perfmodel.validate.run import shipped_folder

SHIPPED = {sweep.id: sweep for sweep in read_sweeps(shipped_folder())}

EXPECTED = {
    # sweep: GPU, hosts, GPUs of each, network, Gbit/s of a host, fabric, whether all is stated
    "cw_gb200_2rack_allreduce": ("gb200", 2, 64, "infiniband", 28800, "rail-optimised", True),
    "cw_a100_4n_sharp_allreduce": ("a100", 4, 8, "infiniband", 1600, "rail-optimised", True),
    "cw_a100_16n_allreduce": ("a100", 16, 8, "infiniband", 1600, "rail-optimised", False),
    "oci_gb200_32n_allreduce": ("gb200", 2, 64, "roce", 28800, "rail-optimised", True),
    "oci_a100_2n_allreduce": ("a100", 2, 8, "roce", 1600, "rail-optimised", True),
    "oci_h100_2n_allreduce": ("h100", 2, 8, "roce", 3200, "rail-optimised", True),
    "aws_p5_2n_allreduce": ("h100", 2, 8, "efa", 3200, "rail-optimised", True),
    "aws_p5_2n_doeks_allreduce": ("h100", 2, 8, "efa", 3200, "rail-optimised", True),
    "nv_dgxh100_1n_allreduce": ("h100", 1, 8, None, 0, "none", True),
    "gcp_a4_b200_2n_allreduce": ("b200", 2, 8, "roce", 3200, "rail-optimised", True),
    "gcp_a3high_2n_allgather": ("h100", 2, 8, "tcpx", 800, "one-switch", True),
    "nebius_h200_2n_allreduce": ("h100", 2, 8, "infiniband", 3200, "rail-optimised", True),
    "gcp_a3mega_2n_allgather_gke": ("h100", 2, 8, "tcpxo", 1600, "rail-optimised", True),
    "aws_g4dn_2n_efa_allreduce_a": ("t4", 2, 1, "efa", 50, "one-switch", True),
    "aws_p4d_2n_allreduce_nccl29": ("a100", 2, 8, "efa", 400, "one-switch", True),
    "rtx2080ti_x2_nop2p_all_reduce": ("2080 ti", 1, 2, None, 0, "none", True),
    "rtx2080ti_x2_nop2p_broadcast": ("2080 ti", 1, 2, None, 0, "none", True),
    "rtx2080ti_x2_nop2p_alltoall": ("2080 ti", 1, 2, None, 0, "none", True),
    "sb_a100_1n_all_reduce": ("a100", 1, 8, None, 0, "none", True),
    "sb_a100_1n_reduce_scatter": ("a100", 1, 8, None, 0, "none", True),
    "sb_a100_1n_reduce": ("a100", 1, 8, None, 0, "none", True),
    "v100_8gpu_hcm_allreduce": ("v100", 1, 8, None, 0, "none", True),
    "a100_8gpu_sp_allreduce": ("a100", 1, 8, None, 0, "none", True),
    "v100_2n_2g_alltoall": ("v100", 2, 2, "infiniband", None, None, False),
    "h100_2n_xe9680_allreduce": ("h100", 2, 8, "infiniband", 3200, "rail-optimised", True),
    "h100_4n_b_allreduce": ("h100", 4, 8, "infiniband", 3200, "rail-optimised", True),
    "h100_8n_b_tuned_allreduce": ("h100", 8, 8, "infiniband", 3200, "rail-optimised", True),
    "rtx4090_x4_p2p_allreduce": ("4090", 1, 4, None, 0, "none", True),
    "rtx4090_x8_p2p_allreduce": ("4090", 1, 8, None, 0, "none", True),
    "l40s_2n_1g_allreduce": ("l40s", 2, 1, "tcp", None, "one-switch", False),
    "rtx3090_2n_roce_mtu256_allreduce": ("3090", 2, 1, "roce", 100, "one-switch", True),
    "hetero_2n_tcp10g_allreduce": ("h100", 2, 1, "tcp", 10, "one-switch", True),
    "a100pcie_2n_hdr_allreduce": ("a100", 2, 1, "infiniband", 200, "one-switch", True),
    "dgx2_12gpu_all_reduce": ("v100", 1, 12, None, 0, "none", True),
    "vtrain_a100_2gpu_allreduce": ("a100", 1, 2, None, 0, "none", True),
    "vtrain_a100_4gpu_allreduce": ("a100", 1, 4, None, 0, "none", True),
    "vtrain_a100_8gpu_allreduce": ("a100", 1, 8, None, 0, "none", True),
    "vtrain_v100_3gpu_allreduce": ("v100", 1, 3, None, 0, "none", True),
    "vtrain_v100_5gpu_allreduce": ("v100", 1, 5, None, 0, "none", True),
    "vtrain_v100_7gpu_allreduce": ("v100", 1, 7, None, 0, "none", True),
    "stas_h200_1n_allreduce_torch": ("h200", 1, 8, None, 0, "none", True),
    "stas_b200_4n_allreduce_torch": ("b200", 4, 8, "efa", 3200, "rail-optimised", True),
    "stas_4n_allreduce_torch": None,
    "v100_2n_roce25g_all_reduce": ("v100", 2, 1, "roce", 25, "one-switch", True),
    "h100pcie_x2_nvlbridge_allreduce": ("h100", 1, 2, None, 0, "none", True),
    "2n_4gpu_crossnic0_allreduce": ("h100", 2, 4, "infiniband", None, "rail-optimised", False),
    "bs_v100_1n4g_allreduce": ("v100", 1, 4, None, 0, "none", True),
    "bs_v100_16n_allreduce": ("v100", 16, 4, "omni-path", 400, "rail-optimised", True),
    "aws_p4de_2n_simple_allreduce": ("a100", 2, 8, "efa", 400, "one-switch", True),
    "h800_8gpu_broadcast": ("h800", 1, 8, None, 0, "none", True),
}


def host_Gbps(found):
    """Raw rate of all NICs of one host, as META states it."""
    from perfmodel.topology.templates.name_ranges import expand_pattern

    node = found.node
    ports = [d.port for d in node.nodes if d.kind == "nic" for _ in expand_pattern(d.id)]
    return round(sum(node.links[port].bandwidth for port in ports) * 8e-9)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_shipped_sweep(name):
    found = match(SHIPPED[name], sweeps_folder(shipped_folder()))
    if EXPECTED[name] is None:
        assert found == "the GPU is not stated"
        return
    assert isinstance(found, Matched), found
    gpu, hosts, each, network, rate, fabric, stated = EXPECTED[name]
    topology = found.topology
    assert read_gpu(topology.gpu.name).part.spelled == gpu
    assert (topology.hosts, len(topology.ranks)) == (hosts, hosts * each)
    assert len(topology.ranks) == SHIPPED[name].nranks
    if network is not None:
        assert topology.network == network
        assert rate is None or host_Gbps(found) == rate
        assert fabric is None or topology.fabric == fabric
    assert (found.unstated == ()) == stated


def test_all_shipped_sweeps_are_expected_here():
    assert set(EXPECTED) == {name for name, sweep in SHIPPED.items() if not sweep.table}


@pytest.mark.parametrize("name", sorted(name for name, s in SHIPPED.items() if s.table))
def test_sweeps_of_a_table_are_of_one_host(name):
    matched = match(SHIPPED[name])
    assert isinstance(matched, Matched)
    assert matched.topology.hosts == 1
    assert len(matched.topology.ranks) == SHIPPED[name].nranks == int(name[-2])
    assert name.split("_")[1] in matched.topology.gpu.name
    assert not matched.unstated


def settings(name):
    return match(SHIPPED[name]).settings


def test_settings_of_shipped_sweeps():
    assert settings("sb_a100_1n_all_reduce").one_process
    assert not settings("nv_dgxh100_1n_allreduce").one_process
    assert settings("v100_2n_2g_alltoall").one_process  # 2 GPUs/process
    assert settings("h100_2n_xe9680_allreduce").version == "2.26.2"
    tuned = settings("h100_8n_b_tuned_allreduce").env
    assert tuned["NCCL_MIN_CTAS"] == "24"
    assert tuned["NCCL_IB_QPS_PER_CONNECTION"] == "2"
    assert settings("aws_p4de_2n_simple_allreduce").env["NCCL_PROTO"].lower() == "simple"
    assert settings("cw_a100_4n_sharp_allreduce").env == {"NCCL_COLLNET_ENABLE": "1"}
    assert settings("v100_2n_roce25g_all_reduce").env["NCCL_MAX_NCHANNELS"] == "2"


def test_what_words_correct_in_shipped_sweeps():
    assert not match(SHIPPED["v100_2n_roce25g_all_reduce"]).topology.gpudirect_rdma
    assert not match(SHIPPED["rtx2080ti_x2_nop2p_all_reduce"]).topology.gpu_p2p
    assert match(SHIPPED["rtx4090_x8_p2p_allreduce"]).topology.gpu_p2p
    crossed = match(SHIPPED["2n_4gpu_crossnic0_allreduce"]).topology
    assert [rank.partition("/")[2] for rank in crossed.ranks[:4]] == [
        "gpu0",
        "gpu2",
        "gpu4",
        "gpu6",
    ]
    # RoCE v2 with MTU 256: 256 of 256 + 82 bytes; the log's plateau is 9.8 GB/s of 12.5
    small = match(SHIPPED["rtx3090_2n_roce_mtu256_allreduce"])
    rate_Bps = max(
        rate
        for kind, rate in zip(
            small.topology.arcs.kinds, small.topology.arcs.bandwidth_Bps, strict=True
        )
        if kind == "ethernet"
    )
    assert rate_Bps == pytest.approx(12.5e9 * 256 / 338, rel=1e-3)


def sweep(**cells):
    usual = {
        "id": "x",
        "collective": "all_reduce",
        "gpu": "H100-SXM5-80GB",
        "nodes": 2,
        "gpus_per_node": 8,
        "nranks": 16,
        "rows": (SweepRow(1024, 1e-5),),
        "intra_node": "NVLink4 NVSwitch",
        "inter_node": "InfiniBand NDR",
        "nic_count": 8.0,
        "nic_Gbps": 400.0,
    }
    return Sweep(**(usual | cells))


UNSEEN = [
    # words, template or None, network, NIC Gbit/s of a host
    ({"nic_count": 4.0}, None, "infiniband", 1600),  # half the NICs of a DGX
    ({"gpu": "NVIDIA H100 80GB HBM3"}, "dgx-h100", "infiniband", 3200),
    (
        {"inter_node": "InfiniBand NDR 8x400G", "nic_count": None, "nic_Gbps": None},
        "dgx-h100",
        "infiniband",
        3200,
    ),
    (
        {"inter_node": "AWS EFA (p5.48xlarge)", "nic_count": 32.0, "nic_Gbps": 100.0},
        "aws-p5",
        "efa",
        3200,
    ),
    (
        {"inter_node": "Ethernet GPUDirect-TCPXO (a3-mega)", "nic_Gbps": 200.0},
        "gcp-a3-mega",
        "tcpxo",
        1600,
    ),
    (
        {
            "gpu": "A100-SXM4-40GB",
            "intra_node": "NVLink3 NVSwitch",
            "nic_Gbps": 200.0,
            "inter_node": "InfiniBand HDR (Azure NDv4)",
        },
        "azure-ndv4",
        "infiniband",
        1600,
    ),
    (
        {
            "gpu": "V100-SXM2-32GB",
            "intra_node": "NVLink2 hybrid cube mesh",
            "nic_count": 1.0,
            "nic_Gbps": 100.0,
            "inter_node": "AWS EFA (p3dn)",
        },
        "aws-p3dn",
        "efa",
        100,
    ),
    (
        {
            "gpu": "A800-SXM4-80GB",
            "inter_node": "RoCE",
            "nic_count": 4.0,
            "nic_Gbps": 200.0,
            "intra_node": "NVLink3 NVSwitch (8 links)",
        },
        None,
        "roce",
        800,
    ),
    (
        {
            "gpu": "Tesla T4",
            "gpus_per_node": 4,
            "nranks": 8,
            "intra_node": "PCIe3",
            "inter_node": "Ethernet 50 Gbps",
            "nic_count": 1.0,
            "nic_Gbps": 50.0,
        },
        None,
        "tcp",
        50,
    ),
    ({"env_and_algo": "NCCL_IB_DISABLE=1", "nic_count": 1.0, "nic_Gbps": 100.0}, None, "tcp", 100),
]


@pytest.mark.parametrize(("cells", "template", "network", "rate"), UNSEEN)
def test_words_nobody_wrote_before(cells, template, network, rate):
    found = match(sweep(**cells))
    assert isinstance(found, Matched), found
    assert found.topology.network == network
    assert host_Gbps(found) == rate
    if template is not None:
        assert found.topology.template == template
    assert found.unstated == ()


def test_a_network_that_only_the_description_knows_is_matched_and_not_counted():
    found = match(sweep(inter_node="Slingshot 11"))
    assert any("slingshot" in line for line in found.assumptions)
    assert found.unstated == ("the kind of network",)


def test_one_rack_of_many_trays_is_one_host():
    trays = {"gpu": "GB200", "nodes": 18, "gpus_per_node": 4, "nranks": 72, "nic_count": 4.0}
    found = match(sweep(**trays, intra_node="NVLink5", inter_node="MNNVL (NVL72)"))
    assert (found.topology.hosts, len(found.topology.ranks)) == (1, 72)
    several = {"gpu": "GB200", "nodes": 35, "gpus_per_node": 4, "nranks": 140, "nic_count": 4.0}
    found = match(sweep(**several, intra_node="NVLink5", inter_node="400G InfiniBand, NVL72"))
    assert (found.topology.hosts, len(found.topology.ranks)) == (2, 140), "the fewest even racks"


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"gpu": "not stated (8-GPU nodes)"}, "GPU is not stated"),
        ({"gpu": "Gaudi 3"}, "Gaudi 3"),
        ({"inter_node": "carrier pigeons"}, "carrier pigeons"),
        ({"collective": "hypercube"}, "'hypercube' is not modelled"),
        ({"nodes": 1, "gpus_per_node": 1, "nranks": 1}, "single rank"),
        ({"topology": "no-such-machine"}, "no-such-machine"),
        ({"gpus_per_node": 16, "nranks": 32, "topology": "dgx-h100"}, "1 to 8"),
    ],
)
def test_what_cannot_be_matched_says_why(cells, reason):
    found = match(sweep(**cells))
    assert isinstance(found, str)
    assert reason in found
    assert len(found) < 300


def test_a_named_topology_wins_over_words(tmp_path):
    named = match(sweep(topology="azure-ndv5", gpu="not stated", inter_node="not stated"))
    assert named.topology.template == "azure-ndv5"
    assert named.unstated == ()
    from perfmodel.files import data_folder

    text = (data_folder("topologies") / "dgx-h100.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("400 Gbit/s", "200 Gbit/s"))
    beside = match(sweep(topology="mine.yaml"), tmp_path)
    assert beside.topology.template == "mine"
    assert host_Gbps(beside) == 1600


def test_runs_of_the_same_hardware_at_any_scale():
    two, eight = match(sweep()), match(sweep(nodes=8, nranks=64))
    other = match(sweep(inter_node="RoCE v2"))
    assert two.hardware == eight.hardware != other.hardware


def test_hosts_with_other_pcie_are_other_hardware():
    def card(intra_node):
        host = {"nodes": 1, "gpus_per_node": 4, "nranks": 4, "inter_node": "none"}
        return match(sweep(gpu="A100-PCIE-40GB", intra_node=intra_node, **host))

    stated = ("PCIe x16 Gen4", "PCIe x16 Gen3", "PCIe x16 Gen4, no P2P", "NVLink bridge")
    hosts = [card(text) for text in stated]
    assert len({found.hardware for found in hosts}) == 4
    unused = card("PCIe x16 Gen4 (NVLink evidently unused)")
    assert unused.hardware == hosts[0].hardware
    assert unused.unstated == ()
    assert "nvlink" not in unused.topology.arcs.kinds
    assert unused.node == hosts[0].node != card("PCIe x16 Gen4, separate sockets").node


def test_a_number_of_ranks_that_no_machine_has_is_listed_at_once():
    found = match(
        Sweep("big", "all_reduce", "A100-SXM4-80GB", 10**8, 8, 8 * 10**8, (SweepRow(8, 1e-5),))
    )
    assert found == "800,000,000 ranks; at most 131,072 are predicted"


def test_a_script_that_waits_for_each_collective_is_known():
    def asked(name):
        return match(SHIPPED[name], sweeps_folder(shipped_folder())).settings

    names = ("stas_h200_1n_allreduce_torch", "bs_v100_1n4g_allreduce", "nv_dgxh100_1n_allreduce")
    assert [asked(name).awaited for name in names] == [True, True, False]


def test_words_say_under_which_cpu_a_nic_sits():
    found = match(SHIPPED["a100pcie_2n_hdr_allreduce"], sweeps_folder(shipped_folder()))
    router = Router(found.topology)
    assert router.path_type("n0/gpu0", "n0/nic0") == "SYS"
    near = match(SHIPPED["rtx3090_2n_roce_mtu256_allreduce"], sweeps_folder(shipped_folder()))
    assert Router(near.topology).path_type("n0/gpu0", "n0/nic0") != "SYS"

"""Library settings from the text beside a log."""

import pytest

from perfmodel.validate.match import one_process, read_settings


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("NCCL_ALGO=Ring NCCL_PROTO=LL128", {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL128"}),
        ("NVLS disabled", {"NCCL_NVLS_ENABLE": "0"}),
        ("NVLS active (busbw over 450)", {}),
        ("SHARP off", {"NCCL_COLLNET_ENABLE": "0"}),
        (
            "PXN disabled, 16 channels",
            {"NCCL_PXN_DISABLE": "1", "NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16"},
        ),
        ("NCCL_COLLNET_ENABLE=1", {}),
        ("NCCL_COLLNET_ENABLE=1, nccl-rdma-sharp-plugins", {"NCCL_COLLNET_ENABLE": "1"}),
        ("FI_PROVIDER=efa", {}),
        ("NVLSTree by default", {}),
    ],
)
def test_words_about_settings(text, env):
    found, _ = read_settings("", "1 GPU/process", text, 8, nvlink=True)
    assert dict(found.env) == env


def test_a_variable_that_is_not_known_takes_no_other_with_it() -> None:
    text = "NCCL_IB_TC=106, NCCL_NO_SUCH_THING=3, NCCL_ALGO=Ring"
    found, notes = read_settings("", "", text, 8, nvlink=True)
    assert found.env == {"NCCL_IB_TC": "106", "NCCL_ALGO": "Ring"}
    assert notes == ("NCCL_NO_SUCH_THING=3 is not modelled",)


def test_what_is_not_modelled_is_said_and_not_lost():
    found, notes = read_settings("2.19 era", "", "NCCL_NO_SUCH_THING=3 FI_X=1", 8, nvlink=True)
    assert found.version == "2.19"
    assert "FI_X=1 is not modelled" in notes
    assert any("2.19" in note for note in notes)
    assert dict(found.env) == {} or "NCCL_NO_SUCH_THING" in found.env


@pytest.mark.parametrize(
    ("text", "per_host", "together"),
    [
        ("single process 8 GPUs", 8, True),
        ("1 GPU/process MPI", 8, False),
        ("4 GPUs/process MPI", 8, True),
        ("1 GPU/process torchrun", 8, False),
        ("single process 1 GPU", 1, False),
        ("", 8, False),
    ],
)
def test_process_layout(text, per_host, together):
    assert one_process(text, per_host) is together

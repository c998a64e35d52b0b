"""Optimizer states as torch.optim keeps them, beside fp32 ones with copies of the parameters."""

import pytest

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.scenario import Scenario
from perfmodel.scenario.load import load_scenario
from perfmodel.training.memory_use import Setup, replicated
from perfmodel.workload.memory.losses import loss_bytes
from perfmodel.workload.memory.optimizer_states import optimizer_bytes, optimizer_state_bytes
from perfmodel.workload.model_changes import chunk_loss
from perfmodel.workload.zoo import build_model
from tests.activations import activation_bytes

MODEL = build_model("gpt2", dtype="bf16", sequence_length=64)


def test_states_of_torch_are_as_narrow_as_the_parameters():
    torch = pytest.importorskip("torch", reason="compares with the extra 'torch'")
    parameter = torch.nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([parameter], foreach=True)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors = [v for v in optimizer.state[parameter].values() if v.numel() > 1]
    per_element = sum(v.numel() * v.element_size() for v in tensors) / parameter.numel()
    own = optimizer_state_bytes(MODEL, "adamw", master_weights=False)
    assert own == per_element * MODEL.parameters
    assert optimizer_state_bytes(MODEL, "adamw") == 12 * MODEL.parameters


def test_narrow_states_move_half_of_fp32_ones():
    wide = build_model("gpt2", sequence_length=64)
    fp32 = optimizer_bytes(wide, "adamw", "fused")
    assert optimizer_bytes(wide, "adamw", "fused", master_weights=False) == fp32
    assert optimizer_bytes(MODEL, "adamw", "fused", master_weights=False) == fp32 / 2


def test_the_setup_says_which():
    uses = [
        replicated(Setup(MODEL, "bf16", "adamw", ranks=1, batch_per_gpu=1, master_weights=masters))
        for masters in (True, False)
    ]
    assert uses[0].optimizer_bytes - uses[1].optimizer_bytes == 8 * MODEL.parameters


@pytest.mark.parametrize("kind", ["zero", "megatron"])
def test_libraries_that_keep_fp32_copies_refuse_to_go_without(tmp_path, kind):
    path = tmp_path / "s.yaml"
    path.write_text(
        f"""# Does it fit?
perfmodel: 1
model: {{name: gpt2, dtype: bf16}}
compute: {{precision: bf16, optimizer: adamw, master_weights: false}}
strategy: {{kind: {kind}}}
cluster: {{node: dgx-a100}}
training: {{batch_per_gpu: 1}}
"""
    )
    with pytest.raises(InputError, match=r"compute\.master_weights"):
        load_scenario(str(path))
    path.write_text(path.read_text().replace(f"kind: {kind}", "kind: fsdp"))
    assert not load_scenario(str(path)).compute.master_weights


def test_the_gradient_of_logits_is_held_beside_their_softmax():
    """And that of the softmax's logarithm: 8 bytes for each logit; fused, as narrow as logits."""
    logits = 64 * 50257
    assert loss_bytes(MODEL, 3, "bf16") == 3 * 8 * logits
    assert loss_bytes(MODEL, 3, "bf16", compiled=True) == 3 * 2 * logits
    assert loss_bytes(build_model("resnet18"), 3, "bf16") == 0


# linkedin/Liger-Kernel, benchmark data of 0.4.2 on an A100: 4,246 MiB at 4,096 tokens and 5,795 at
# 32,768, hidden 4,096, 128,256 words, bf16; with weight, input and the gradients that both had.
@pytest.mark.parametrize(("samples", "peak_MiB"), [(1, 4245.55), (2, 4466.97), (8, 5794.63)])
def test_a_loss_over_chunks_of_tokens_holds_what_liger_measured(samples, peak_MiB):
    plain = build_model("llama3-8b", sequence_length=4096, dtype="bf16")
    own = peak_MiB * 2**20 - 4 * 4096 * (128256 + samples * 4096)
    found = loss_bytes(chunk_loss(plain), samples, "bf16")
    assert found == pytest.approx(own, rel=0.1)
    assert found < loss_bytes(plain, samples, "bf16")
    kept = [activation_bytes(each, samples, "bf16") for each in (plain, chunk_loss(plain))]
    assert kept[0] - kept[1] == 4 * 128256 * samples * 4096
    with pytest.raises(InputError, match="no loss over a vocabulary"):
        chunk_loss(build_model("resnet18"))


def test_cross_entropy_of_torch_holds_that_much():
    """Two fp32 gradients beside the softmax, then that of half-precision logits.

    linkedin/Liger-Kernel measured 20 bytes for each fp32 logit: also the logits and their gradient
    of the step before.
    """
    torch = pytest.importorskip("torch", reason="compares with the extra 'torch'")
    from torch.utils._python_dispatch import TorchDispatchMode

    made = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and not func.is_view and result.dim() == 2:
                made.append(result.element_size())
            return result

    logits = torch.randn(4, 9, dtype=torch.bfloat16, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(logits.float(), torch.arange(4))
    with Made():
        loss.backward()
    assert made == [4, 4, 2]


def test_scenarios_without_the_field_keep_fp32_copies():
    document = {
        "perfmodel": 1,
        "model": {"name": "gpt2"},
        "compute": {"precision": "bf16"},
        "cluster": {"node": "dgx-a100"},
        "training": {"batch_per_gpu": 1},
    }
    assert validate_document(Scenario, document).compute.master_weights

"""Modules and batches as people have them: wrapped, sharded, compiled; dicts, dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="modules need the extra 'torch'")

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from perfmodel.errors import InputError
from perfmodel.torch_modules.capture import Capture, capture
from tests.activations import activation_bytes
from tests.torch_modules.small_modules import Stack, real_step

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's deprecations

IDS = torch.zeros(2, 8, dtype=torch.long)
BATCH = {"ids": IDS, "labels": IDS}
Make = Callable[[], Any]


@pytest.fixture(scope="module")
def plain() -> Capture:
    return capture(Stack(), BATCH, name="stack")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one."""
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def with_blocks(change: Callable[[Any], Any]) -> Any:
    module = Stack()
    for place, block in enumerate(module.blocks):
        module.blocks[place] = change(block)
    return module


def in_autocast() -> Any:
    class InAutocast(Stack):
        def forward(self, ids: Any, labels: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(ids, labels)

    return InAutocast()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "note"),
    [
        (lambda: torch.compile(Stack()), ""),
        (lambda: with_blocks(torch.compile), ""),
        (lambda: torch.nn.DataParallel(Stack()), ""),
        (lambda: DistributedDataParallel(torch.compile(Stack())), ""),
        (lambda: with_blocks(checkpoint_wrapper), "compute.recompute"),
        (in_autocast, "compute.precision"),
        (lambda: Stack().double(), ""),
    ],
)
@pytest.mark.usefixtures("group")
def test_the_module_inside_is_captured(make: Make, note: str, plain: Capture) -> None:
    captured = capture(make(), BATCH, name="stack")
    assert note in " ".join(captured.notes)
    assert bool(note) == bool(captured.notes)
    assert captured.ready_order == plain.ready_order
    assert captured.document["layers"] == plain.document["layers"]
    shapes = [
        [(each["name"], each["shape"]) for each in of.document["parameters"]]
        for of in (captured, plain)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    "around", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_modes_around_do_not_matter(around: Make, plain: Capture) -> None:
    with around():
        captured = capture(Stack(), BATCH, name="stack")
        assert captured.document == plain.document
    assert not torch.is_autocast_enabled("cpu")


def sharded() -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    return fully_shard(Stack(), mesh=mesh)


def flat() -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(Stack(), device_id=torch.device("cpu"))


def lazy() -> Any:
    return nn.Sequential(nn.LazyLinear(4))


def scripted() -> Any:
    return nn.Sequential(nn.Linear(4, 4), torch.jit.trace(nn.Linear(4, 4), torch.zeros(2, 4)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (sharded, r"table.weight, a DTensor.*before fully_shard.*`strategy`"),
        (flat, r"FullyShardedDataParallel.*before fully_shard"),
        (lazy, r"0.weight, of a lazy module.*after one forward"),
        (scripted, r"torch.jit \(1\).*before torch.jit.script"),
    ],
)
@pytest.mark.usefixtures("group")
def test_what_cannot_be_captured_says_what_to_do(make: Make, words: str) -> None:
    with pytest.raises(InputError, match=words):
        capture(make(), BATCH)


@pytest.mark.usefixtures("group")
def test_real_steps_are_not_those_of_a_wrapped_module() -> None:
    for arguments in ({"real": True}, {"measure": True}):
        with pytest.raises(InputError, match="before it is wrapped"):
            capture(DistributedDataParallel(Stack()), BATCH, **arguments)


@pytest.mark.slow
def test_a_compiled_module_is_measured_as_it_runs(plain: Capture) -> None:
    compiled = []

    def backend(graph: Any, _inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    captured = capture(torch.compile(Stack(), backend=backend), BATCH, name="stack", measure=True)
    assert compiled
    assert captured.measured is not None
    assert captured.ready_order == plain.ready_order


@dataclasses.dataclass(frozen=True)
class Fields:
    """A batch of one's own."""

    ids: Any
    labels: Any


class Pair(NamedTuple):
    """A batch by place."""

    ids: Any
    labels: Any


class Whole(Stack):
    """Takes the batch as it is."""

    def forward(self, batch: Any) -> Any:
        named = (
            batch
            if isinstance(batch, dict)
            else dict(
                zip(("ids", "labels"), (batch.ids, batch.labels), strict=True)
                if hasattr(batch, "ids")
                else zip(("ids", "labels"), batch, strict=True)
            )
        )
        return super().forward(**named)


@pytest.mark.slow
@pytest.mark.parametrize("module", [Stack, Whole])
@pytest.mark.parametrize(
    "batch",
    [BATCH, (IDS, IDS), [IDS, IDS], Fields(IDS, IDS), Pair(IDS, IDS)],
    ids=["dict", "tuple", "list", "dataclass", "namedtuple"],
)
def test_batches_are_given_as_forward_takes_them(module: type, batch: Any, plain: Capture) -> None:
    assert capture(module(), batch, name="stack").document == plain.document


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (
            torch.utils.data.DataLoader([IDS], batch_size=1),
            r"no tensor in a DataLoader.*next\(iter\(loader\)\)",
        ),
        ({**BATCH, "names": ["a", "b"]}, r"unexpected keyword argument 'names'"),
        ((IDS, IDS, IDS), r"3 .*positional.*a target beside the inputs goes with loss="),
    ],
    ids=["loader", "name", "place"],
)
def test_batches_that_do_not_fit_are_named(batch: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        capture(Stack(), batch)


def test_a_nested_tensor_is_named() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    with pytest.raises(InputError, match="a nested tensor"):
        capture(Stack(), nested)


def test_what_a_module_caches_in_a_step_is_not_there_afterwards() -> None:
    """It would be fake tensors, with which no real step runs."""

    class Caching(Stack):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.by_size = None, {}

        def forward(self, ids: Any, labels: Any) -> Any:
            if self.places is None:
                self.places = torch.arange(ids.shape[1])
                self.by_size[ids.shape] = torch.ones(1)
            return super().forward(ids + self.places, labels) * self.by_size[ids.shape]

    module = Caching()
    capture(module, BATCH)
    assert module.places is None
    assert module.by_size == {}
    assert torch.isfinite(module(**BATCH))


def test_outputs_may_be_a_dataclass() -> None:
    class Answer(Stack):
        def forward(self, ids: Any, labels: Any) -> Any:
            return Fields(ids, super().forward(ids, labels))

    assert capture(Answer(), BATCH).backward_flops > 0


@pytest.mark.slow
def test_recurrence_has_its_operations() -> None:
    """PyTorch runs an LSTM on CPUs, and cuDNN on GPUs, in one kernel of unknown operations."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(6, 10, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            return self.cells(x)[0].sum()

    x = torch.zeros(3, 7, 6)
    for real in (False, True):
        captured = capture(Recurrent(), x, real=real)
        assert captured.forward_flops == 7 * 2 * 4 * 10 * (6 + 10 + 10 + 10)
        assert "step by step" in " ".join(captured.notes)
    assert torch.backends.mkldnn.enabled


def test_synchronised_norms_need_no_gpu() -> None:
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    images = torch.zeros(2, 3, 8, 8)
    plain_document = capture(own, images).document
    captured = capture(nn.SyncBatchNorm.convert_sync_batchnorm(own), images)
    assert captured.document == plain_document
    assert "between GPUs" in " ".join(captured.notes)


def test_complex_parameters_are_pairs() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 5, dtype=torch.cfloat))
            self.map = nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.map(torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8))

    captured = capture(Spectral(), torch.zeros(2, 4, 8))
    assert captured.workload.tensors[0].nbytes == 8 * 4 * 5
    assert set(captured.ready_order) == {"weight", "map.weight", "map.bias"}
    assert "_fft_r2c" in " ".join(captured.notes)


@pytest.mark.slow
def test_attention_that_broadcasts_heads_is_not_fused() -> None:
    """No fused kernel has it: what is kept is what PyTorch keeps, scores and all."""

    class OneKey(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maps = nn.Linear(16, 16 + 8, bias=False)

        def forward(self, x: Any) -> Any:
            query, key, value = self.maps(x).split([16, 4, 4], -1)
            query = query.unflatten(-1, (4, 4)).transpose(1, 2)
            key, value = key.unsqueeze(1), value.unsqueeze(1)
            return nn.functional.scaled_dot_product_attention(query, key, value).sum()

    x = torch.zeros(2, 32, 16)
    captured, module = capture(OneKey(), x), OneKey()
    with FlopCounterMode(display=False) as counter:
        module(x)
    assert captured.forward_flops * 2 == counter.get_total_flops()
    _, kept = real_step(module, lambda each: each(x))
    assert activation_bytes(captured.workload, 2, "fp32") == kept


def test_attention_has_the_layout_of_its_query() -> None:
    """Where a part of each head was rotated its result is copied to be laid out by tokens."""

    class Rotated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maps = nn.Linear(16, 48, bias=False)
            self.out = nn.Linear(16, 16, bias=False)

        def forward(self, x: Any) -> Any:
            maps = self.maps(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
            query, key, value = (torch.cat((2 * each[..., :2], each[..., 2:]), -1) for each in maps)
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            return self.out(mixed.transpose(1, 2).flatten(2)).sum()

    x = torch.zeros(2, 32, 16)
    _, kept = real_step(Rotated(), lambda each: each(x))
    assert activation_bytes(capture(Rotated(), x).workload, 2, "fp32") == kept


def test_a_product_that_is_no_batch_of_products_is_shared_by_rows() -> None:
    """An einsum with a weight that is not laid out for it multiplies a copy of that weight."""

    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(12, 3, 4))

        def forward(self, x: Any) -> Any:
            return torch.einsum("bind,hnd->bih", x, self.weight)

    captured = capture(Folded(), torch.zeros(2, 5, 3, 4))
    assert captured.forward_flops == 2 * 5 * 12 * 12
    assert sum(layer.matmul_flops for layer in captured.workload.layers) == 2 * 5 * 12 * 12


def test_wrapped_modules_have_recorded_steps_of_the_same_names(
    group: None, plain: Capture, tmp_path: Path
) -> None:
    from perfmodel.torch_modules.ddp_steps import record_steps

    del group
    model = DistributedDataParallel(with_blocks(checkpoint_wrapper))
    with record_steps(model) as recorded:
        for _ in range(3):
            model(**BATCH).backward()
    assert recorded.apply(plain).save(tmp_path / "timed.yaml").is_file()

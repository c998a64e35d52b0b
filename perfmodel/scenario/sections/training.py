"""Sections ``training`` and ``compute``: batches, precisions with fp8, and times of layers."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from perfmodel.files import Count, FileModel, Nodes, Seconds
from perfmodel.scenario.sections.base import Index, Name, Rules, Section, Switch, is_growing

RECIPES: Mapping[str, tuple[str, ...]] = {
    "transformer_engine": ("delayed", "current", "blockwise", "mxfp8", "nvfp4", "mxfp4"),
    "torchao": ("tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8"),
}
"""Recipes of each library."""

OF_LIBRARY: Mapping[str, str] = {
    "reduce_amax": "transformer_engine",
    "amax_history_len": "transformer_engine",
    "tp_only_amax_red": "transformer_engine",
    "fp8_param_gather": "transformer_engine",
    "fp8_dot_product_attention": "transformer_engine",
    "first_last_layers_bf16": "transformer_engine",
    "filter_fqns": "torchao",
    "num_layers_at_start_in_bf16": "transformer_engine",
    "num_layers_at_end_in_bf16": "transformer_engine",
    "enable_fsdp_float8_all_gather": "torchao",
    "precompute_float8_dynamic_scale_for_fsdp": "torchao",
}
"""Fields that one library has."""
_OF_DELAYED = {"reduce_amax", "tp_only_amax_red", "amax_history_len"}
_OF_ENDS = {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"}


class Float8Section(Section):
    """Linear layers of repeated blocks in fp8; norms, embedding, head and mostly attention in bf16.

    Fields of Transformer Engine's recipes and of Megatron-Core, or of torchao and torchtitan.
    """

    library: Literal["transformer_engine", "torchao"] = Field(
        default="transformer_engine", description="default: the one that has the recipe"
    )
    recipe: Literal[
        "delayed",
        "current",
        "blockwise",
        "mxfp8",
        "nvfp4",
        "mxfp4",
        "tensorwise",
        "rowwise",
        "rowwise_with_gw_hp",
    ] = Field(
        default="delayed",
        description="of scales; Transformer Engine: 'delayed', 'current', 'blockwise' (Hopper and "
        "newer), 'mxfp8' (Blackwell, MI350X and MI355X), 'nvfp4' (of 4 bits; Blackwell), 'mxfp4' "
        "(of 4 bits; MI350X and MI355X); torchao: 'tensorwise', 'rowwise', 'rowwise_with_gw_hp', "
        "'mxfp8'",
    )
    reduce_amax: Switch = Field(
        default=True, description="all GPUs agree on greatest values after each pass (delayed)"
    )
    tp_only_amax_red: Switch = Field(
        default=False,
        description="they agree within tensor-parallel groups only, of one GPU each (delayed)",
    )
    amax_history_len: Count = Field(default=1024, description="steps that are kept (delayed)")
    first_last_layers_bf16: Switch = Field(
        default=False, description="blocks at both ends stay in bf16 (not delayed)"
    )
    num_layers_at_start_in_bf16: Index = 1
    num_layers_at_end_in_bf16: Index = 1
    fp8_param_gather: Switch = Field(
        default=False,
        description="parameters are kept and gathered in fp8 (strategy.kind: megatron)",
    )
    fp8_dot_product_attention: Switch = Field(
        default=False,
        description="attention multiplies in fp8, too (cuDNN on Hopper and Blackwell)",
    )
    filter_fqns: tuple[Name, ...] | None = Field(
        default=None,
        description="parts of names of linear layers that stay in bf16; default: those outside of "
        "repeated blocks, such as the head",
    )
    enable_fsdp_float8_all_gather: Switch = Field(
        default=False,
        description="weights are gathered in fp8 (strategy.kind: fsdp, version 2; tensorwise)",
    )
    precompute_float8_dynamic_scale_for_fsdp: Switch = Field(
        default=False, description="scales of all weights in one all-reduce, after the optimizer"
    )

    @model_validator(mode="before")
    @classmethod
    def _infer_library(cls, data: Any) -> Any:
        recipe = data.get("recipe") if isinstance(data, Mapping) else None
        owner = next((library for library, known in RECIPES.items() if recipe in known), None)
        return data if owner is None else {"library": owner, **data}

    @property
    def agrees(self) -> bool:
        """Whether all GPUs agree on greatest values after each pass."""
        return self.recipe == "delayed" and self.reduce_amax

    def _rules(self) -> Rules:
        library, is_delayed = self.library, self.recipe == "delayed"
        named = sorted(self.model_fields_set)
        return (
            (
                self.recipe not in RECIPES[library],
                f"a recipe of {library}: {', '.join(map(repr, RECIPES[library]))}",
            ),
            *(
                (OF_LIBRARY[name] != library, f"{name!r} with library: {OF_LIBRARY[name]} alone")
                for name in named
                if name in OF_LIBRARY
            ),
            *(
                (name in _OF_DELAYED and not is_delayed, f"{name!r} with recipe: delayed alone")
                for name in named
            ),
            *(
                (
                    name in _OF_ENDS and not self.first_last_layers_bf16,
                    f"{name!r} with 'first_last_layers_bf16: true' alone",
                )
                for name in named
            ),
            (
                self.tp_only_amax_red and not self.reduce_amax,
                "'tp_only_amax_red' with 'reduce_amax: true' alone",
            ),
            (
                self.first_last_layers_bf16 and is_delayed,
                "'first_last_layers_bf16' with another recipe than delayed alone",
            ),
            (
                self.fp8_param_gather and self.recipe in ("mxfp8", "mxfp4"),
                "'fp8_param_gather' with recipe: delayed, current or blockwise",
            ),
            (
                self.enable_fsdp_float8_all_gather and self.recipe != "tensorwise",
                "'enable_fsdp_float8_all_gather' with recipe: tensorwise alone",
            ),
            (
                self.precompute_float8_dynamic_scale_for_fsdp
                and not self.enable_fsdp_float8_all_gather,
                (
                    "'precompute_float8_dynamic_scale_for_fsdp' with "
                    "'enable_fsdp_float8_all_gather: true' alone"
                ),
            ),
        )


class MeasuredStep(FileModel):
    """A whole step that was measured on one GPU, and its samples."""

    time: Annotated[Seconds, Field(gt=0)]
    batch: Count


def _parse_measured_step(value: object) -> object:
    if isinstance(value, MeasuredStep | Mapping):
        return value
    match = re.fullmatch(r"\s*(.+?)\s+at\s+batch\s+(\d+)\s*", str(value))
    if match is None:
        raise ValueError("a time and the samples of the step, such as '93 ms at batch 256'")
    return {"time": match[1], "batch": int(match[2])}


class RecomputedBlocks(FileModel):
    """The first so many of the repeated blocks, as Megatron's ``block`` method has it."""

    blocks: Count


class KeptResults(FileModel):
    """Products and attention whose results are kept, as JAX's named policies have it."""

    keep: Annotated[tuple[Name, ...], Field(min_length=1, max_length=64)]


class RecomputedModules(FileModel):
    """Modules of every block, as Megatron's ``recompute-modules`` has it."""

    modules: Annotated[
        tuple[Literal["core_attn", "mlp", "moe", "layernorm", "moe_act", "mla_up_proj"], ...],
        Field(min_length=1),
    ]


def _recompute_tag(value: object) -> str:
    stated = dict(value) if isinstance(value, FileModel) else value
    if not isinstance(stated, Mapping):
        return "word"
    return next((tag for tag in ("modules", "keep") if tag in stated), "blocks")


RecomputeField = Annotated[
    Annotated[Literal["none", "selective", "operations", "full"], Tag("word")]
    | Annotated[RecomputedBlocks, Tag("blocks")]
    | Annotated[KeptResults, Tag("keep")]
    | Annotated[RecomputedModules, Tag("modules")],
    Discriminator(_recompute_tag),
]


class ComputeSection(Section):
    """How long each layer takes: from the GPU's roofline, or from a file of measured times."""

    source: Literal["roofline", "file"] = "roofline"
    precision: Literal["bf16", "fp16", "tf32", "fp32", "fp8"] = Field(
        description="of the matrix products; parameters keep `model.dtype`; fp8: of linear layers "
        "in repeated blocks, the rest is bf16"
    )
    fp8: Float8Section | None = Field(
        default=None, description="how layers run with precision fp8; default: delayed scaling"
    )
    times: Name | None = Field(
        default=None, description="CSV of seconds per layer, relative to the scenario's folder"
    )
    measured_step: (
        Annotated[
            MeasuredStep,
            BeforeValidator(_parse_measured_step),
            WithJsonSchema({"type": "string", "examples": ["93 ms at batch 256"]}),
        ]
        | None
    ) = Field(
        default=None,
        description="a step measured on one such GPU, alone: forward, backward and optimizer of "
        "this model, in this precision; the roofline's times are scaled to it",
    )
    overlap_slowdown: Annotated[float, Field(strict=True, ge=1, le=1e6)] | None = Field(
        default=None,
        description="factor on compute while a collective runs on the same GPU; default: the GPU's",
    )
    gpu_spread: Annotated[float, Field(strict=True, ge=0, le=0.5)] | None = Field(
        default=None,
        description="standard deviation over mean of the speeds of GPUs of one model, the slowest "
        "of which a step waits for; default: 0.015, and 0 for processes on CPUs",
    )
    optimizer: Literal[
        "sgd",
        "sgd-momentum",
        "adam",
        "adamw",
        "lion",
        "lamb",
        "adamw-8bit",
        "adafactor",
        "muon",
        "soap",
        "shampoo",
    ] = Field(
        default="sgd-momentum",
        description="'adamw-8bit' (bitsandbytes: a byte for each state), 'adafactor' "
        "(transformers), 'muon' (torch.optim: matrices of blocks; the rest by AdamW), 'soap' (its "
        "authors': new eigenvectors each 10 steps) and 'shampoo' (blocks of 1024, new roots each "
        "100 steps) run tensor by tensor, whatever optimizer_kernels says of others",
    )
    optimizer_kernels: Literal["foreach", "fused", "for-loop"] = Field(
        default="foreach",
        description="how the optimizer runs: an operation at a time on all tensors (PyTorch's "
        "default), in one pass (fused=True, Apex), or tensor by tensor (PyTorch before 2.0)",
    )
    master_weights: Switch = Field(
        default=True,
        description="fp32 copies of narrower parameters, and fp32 optimizer states; false: states "
        "in the dtype of the parameters, as torch.optim keeps them",
    )
    channels_last: Switch = Field(
        default=False, description="convolutions in NHWC, which spares tensor cores a transposition"
    )
    fused_attention: Switch | Literal["flash_1", "flash_2", "flash_3", "flash_4", "cudnn"] = Field(
        default=True,
        description="attention as one kernel (scaled_dot_product_attention); 'flash_1': that of "
        "FlashAttention 1, until 2023; 'flash_2': that of FlashAttention 2, which PyTorch ran on "
        "Hopper before 2.10; 'flash_3' (Hopper), 'flash_4' (Hopper, Blackwell): those packages'; "
        "'cudnn': cuDNN's, which PyTorch takes there by itself since, as Transformer Engine does",
    )
    compiled: Switch | Literal["blocks", "by_hand"] = Field(
        default=False,
        description="chains of element-wise kernels fused, and less kept for backward "
        "(torch.compile); 'blocks': each repeated block alone, but not the head and the loss; "
        "'by_hand': by kernels of Megatron and apex, beside which dropout of scores stays apart, "
        "and what routes tokens to experts that have a kernel each",
    )
    fused_loss: Switch = Field(
        default=False,
        description="head and cross entropy over chunks of tokens, so that the logits are never "
        "there at once (Liger-Kernel's fused linear cross entropy)",
    )
    cuda_graphs: Switch = Field(
        default=False, description="kernels replayed from CUDA graphs: the host issues none"
    )
    recompute: RecomputeField = Field(
        default="none",
        description="of activations, in backward: 'selective', the core attention (scores, "
        "softmax, dropout, weighted sum); 'operations', every repeated block but for attention and "
        "every second matrix product, whose results are kept (torchtitan's 'op'); 'full', every "
        "repeated block, of which its input is kept; {blocks: N}, the first N of them; or {keep: "
        "[q_proj, ...]}, every repeated block but for these products, whose results are kept "
        "(JAX's named policies), and for its last product, which backward does not need; or "
        "{modules: [mlp, moe_act, ...]}, as Megatron's selective granularity has them",
    )
    offload_activations: Literal["none", "blocking", "overlapped"] = Field(
        default="none",
        description="of blocks, to the memory of the host: 'blocking', with copies in the stream "
        "of the layers (save_on_cpu); 'overlapped', beside them",
    )

    def _rules(self) -> Rules:
        from_file, in_fp8 = self.source == "file", self.precision == "fp8"
        recipe = None if self.fp8 is None else (self.fp8.library, self.fp8.recipe)
        return (
            (
                from_file != (self.times is not None),
                "'times' together with 'source: file', and only then",
            ),
            (
                from_file and self.measured_step is not None,
                "no 'measured_step' with 'source: file', whose times are measured",
            ),
            *(
                (
                    from_file and getattr(self, name),
                    f"no {name!r} with 'source: file', whose times have it",
                )
                for name in ("channels_last", "compiled")
            ),
            (
                self.optimizer in ("adafactor", "adamw-8bit", "soap", "shampoo")
                and self.optimizer_kernels == "fused",
                f"no 'optimizer_kernels: fused' with {self.optimizer!r}, run tensor by tensor",
            ),
            (self.fp8 is not None and not in_fp8, "'fp8' with 'precision: fp8' alone"),
            (
                in_fp8 and from_file,
                "'source: roofline' with 'precision: fp8', whose casts are predicted",
            ),
            (
                recipe == ("torchao", "mxfp8") and not self.compiled,
                "'compiled: true' with recipe mxfp8 of torchao",
            ),
        )


class TrainingSection(Section):
    """The batch: per GPU and growing with the cluster (weak), or global and fixed (strong).

    `batch_per_gpu` counts the samples of one forward pass; with `strategy.accumulate` a step
    trains that many times more.
    """

    scaling: Literal["weak", "strong"] = Field(
        default="weak", description="default: weak with batch_per_gpu, strong with global_batch"
    )
    batch_per_gpu: Count | None = None
    global_batch: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _infer_scaling(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {"scaling": "weak" if data.get("global_batch") is None else "strong", **data}

    def _rules(self) -> Rules:
        names = ("batch_per_gpu", "global_batch")
        required, other = names if self.scaling == "weak" else names[::-1]
        return (
            (
                getattr(self, required) is None or getattr(self, other) is not None,
                f"{required!r} and no {other!r} with scaling: {self.scaling}",
            ),
        )


class ScaleSection(Section):
    """Sizes of the scaling curve, growing, below that of the cluster, which is its last point."""

    gpus: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    nodes: Annotated[tuple[Nodes, ...], Field(min_length=1)] | None = None

    def _rules(self) -> Rules:
        return (
            (
                (self.gpus is None) == (self.nodes is None),
                "either 'gpus' or 'nodes', exactly one list",
            ),
            (
                not is_growing(self.gpus or self.nodes or ()),
                "sizes that grow, such as [1, 2, 4, 8]",
            ),
        )

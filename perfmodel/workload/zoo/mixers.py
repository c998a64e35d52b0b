"""What stands in place of attention in hybrid models: Mamba 1 and 2, gated delta rule.

Maps of the input, a short convolution, a scan along the sequence, a gated norm and a map back, as
transformers runs them with the kernels of mamba_ssm, causal_conv1d and flash-linear-attention.
"""

from __future__ import annotations

from perfmodel.errors import failed, raise_faults
from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.kernels.scans import quantities, scan_operations, scan_table, total
from perfmodel.workload.kernels.shapes import WIDE_BYTES, Scan
from perfmodel.workload.layer_calls import norm_calls
from perfmodel.workload.model import ELEMENT_BYTES, Layer
from perfmodel.workload.shard import Shard, divisor_faults
from perfmodel.workload.zoo.decoder_block import BlockPlace, attention_part, projection
from perfmodel.workload.zoo.decoder_sizes import MIXER_NAMES, DecoderShape, MixerShape
from perfmodel.workload.zoo.layers import (
    Module,
    Parameter,
    join_maps,
    linear,
    more_work,
    names,
    names_reversed,
    numels,
    weight_and_bias,
)

NOTE = (
    "Scans run as in mamba_ssm and flash-linear-attention, convolutions as in causal_conv1d; where "
    "these packages are missing, transformers runs other operations, which take far longer."
)


def token_part(place: BlockPlace, window: int | None) -> list[Module]:
    """Attention or what stands for it, where a block has this part.

    `window`: as of `attention_part`.
    """
    if place.shape.part == "features":
        return []
    mixer = place.shape.mixer
    return mixer_part(place, mixer) if mixer else attention_part(place, window)


def mixers_of(shape: DecoderShape) -> list[MixerShape]:
    """Return the mixers of a model's layers."""
    return [fields["mixer"] for fields in shape.by_layer.values() if fields.get("mixer")]


def check_mixers(name: str, shape: DecoderShape, shard: Shard) -> None:
    """Raise InputError where ranks would share a scan otherwise than Megatron-Core's do."""
    for mixer in mixers_of(shape)[:1]:
        shared = [(mixer.heads, "heads of a scan"), (mixer.groups, "groups of its keys")]
        why = f"1 for {name!r}, whose scans hand no state on from rank to rank"
        torch = shard.tensor > 1 and shard.library == "torch"
        raise_faults(
            divisor_faults("tensor", shard.tensor, shared)
            + failed(
                (shard.context > 1, "context", str(shard.context), why),
                (torch, "tensor", str(shard.tensor), f"1 for {name!r}, or library: megatron"),
            )
        )


def mixer_part(place: BlockPlace, mixer: MixerShape) -> list[Module]:
    """Normalise, map, scan, map, add."""
    shape, shard, called = place.shape, place.shard, MIXER_NAMES[mixer.names]
    ranks, family, h = shard.tensor, shape.block_names, shape.width
    scan = Scan(
        called.rule,
        shard.map_tokens(place.tokens),
        mixer.heads // ranks,
        mixer.groups // ranks,
        mixer.value_size,
        mixer.key_size,
        mixer.chunk,
    )
    widths = {name: total(scan, counts) / scan.tokens for name, counts in called.maps.items()}
    maps = [
        projection(
            place,
            f"{called.path}.{name}",
            h,
            round(width),
            norm="" if at else family.norm,
            begins=not at,
            shared=at > 0,
        )
        for at, (name, width) in enumerate(widths.items())
    ]
    if shard.joins_maps:
        maps = [join_maps(maps, f"{place.prefix}.{called.path}.in_proj")]
    values = scan.heads * scan.value_size
    out = projection(
        place, f"{called.path}.{called.out}", values, h, after=family.after_attention, added=True
    )
    wide = passes_of("wide_stream") * shape.wide_stream * shard.stream_tokens(place.tokens) * h
    moved, scanned = ELEMENT_BYTES * wide, _selected if mixer.rank else _scanned
    added = more_work(out, vector_bytes=moved, wide_bytes=moved)
    return [*maps, *scanned(place, mixer, scan), added]


def _selected(place: BlockPlace, mixer: MixerShape, scan: Scan) -> list[Module]:
    """Convolve, map to step sizes and keys, normalise these, and scan, as Jamba does."""
    path, s = f"{place.prefix}.{MIXER_NAMES[mixer.names].path}", scan.tokens
    inner, state, rank, kernels = scan.heads, scan.key_size, mixer.rank, scan_table()[scan.rule]
    values, outputs = float(s * inner), rank + 2 * state
    convolution = weight_and_bias(f"{path}.conv1d", inner, 1, mixer.kernel, bias=mixer.biased)
    decays: tuple[Parameter, ...] = ((f"{path}.A_log", (inner, state)),)
    skip: tuple[Parameter, ...] = ((f"{path}.D", (inner,)),)
    moved = ELEMENT_BYTES * passes_of("activation") * values
    convolved = Layer(f"{path}.conv1d", vector_bytes=moved, fused_bytes=moved)
    norms = [
        parameter
        for name, width in (("dt", rank), ("b", state), ("c", state))
        for parameter in weight_and_bias(f"{path}.{name}_layernorm", width, bias=False)
    ]
    own = weight_and_bias(f"{path}.x_proj", outputs, inner, bias=False)
    mapped = linear(
        f"{path}.x_proj",
        s,
        inner,
        outputs,
        parameters=own + tuple(norms),
        ready=names_reversed(norms) + names(own),
        norm_elements=float(passes_of("rms_norm") * s * outputs),
        wide_norm=True,
        fused_elements=float(passes_of("fused_norm") * s * outputs),
        saved_elements=values + s * outputs,
        saved_bytes=float(WIDE_BYTES * s * outputs),
        kernels=1 + 3 * kernels_of("rms_norm"),
    )
    steps = linear(f"{path}.dt_proj", s, rank, inner, saved_elements=float(s * rank))
    layer = Layer(
        f"{path}.scan",
        matmul_flops=scan_operations(scan),
        matmul_bytes=ELEMENT_BYTES * 2 * values,
        saved_elements=total(scan, kernels["kept"]["narrow"]),
        matrix=scan,
    )
    ready = names_reversed(convolution) + names(decays)
    first = Module(convolved, decays + convolution, ready)
    return [first, mapped, steps, Module(layer, skip, names(skip))]


def _scanned(place: BlockPlace, mixer: MixerShape, scan: Scan) -> list[Module]:
    """Convolve, scan, normalise and gate."""
    called, path = MIXER_NAMES[mixer.names], f"{place.prefix}.{MIXER_NAMES[mixer.names].path}"
    kernels, each = scan_table()[scan.rule], quantities(scan)
    values = each["values"]
    channels = scan.heads * scan.value_size + 2 * scan.groups * scan.key_size
    gains = scan.heads * scan.value_size if called.whole_norm else scan.value_size
    vectors: tuple[Parameter, ...] = tuple(
        (f"{path}.{name}", (scan.heads,)) for name in called.vectors
    )
    convolution = weight_and_bias(f"{path}.conv1d", channels, 1, mixer.kernel, bias=mixer.biased)
    norm = weight_and_bias(f"{path}.{called.norm}", gains, bias=False)
    apart = kernels.get("norm", {"passes": 0.0, "kernels": 0})
    norm_bytes = ELEMENT_BYTES * apart["passes"] * values
    copied_bytes = ELEMENT_BYTES * total(scan, called.copied)
    layer = Layer(
        f"{path}.scan",
        matmul_flops=scan_operations(scan),
        matmul_bytes=float(ELEMENT_BYTES * (2 * values + 2 * each["keys"])),
        vector_bytes=norm_bytes + copied_bytes,
        fused_bytes=ELEMENT_BYTES * passes_of("fused_addition") * values * (norm_bytes > 0)
        + copied_bytes,
        norm_bytes=norm_bytes,
        wide_norm=True,
        saved_elements=total(scan, kernels["kept"]["narrow"]),
        saved_bytes=WIDE_BYTES * total(scan, kernels["kept"]["wide"]),
        kernels=1 + apart["kernels"] + sum(called.copied.values()) // 2,
        matrix=scan,
        calls=() if called.whole_norm else norm_calls(place.shard, numels(norm), heads=True),
    )
    own = vectors + convolution + norm
    ready = (f"{path}.{name}" for name in called.ready)
    return [Module(layer, own, tuple(name for name in ready if name in names(own)))]

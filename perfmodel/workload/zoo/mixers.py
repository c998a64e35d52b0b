"""What stands in place of attention in hybrid models: Mamba 1 and 2, gated delta rule.

Maps of the input, a short convolution, a scan along the sequence, a gated norm and a map back, as
transformers runs them with the kernels of mamba_ssm, causal_conv1d and flash-linear-attention.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from perfmodel.errors import failed, raise_faults
from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.kernels.scans import quantities, scan_operations, scan_table, total
from perfmodel.workload.kernels.shapes import WIDE_BYTES, Scan
from perfmodel.workload.layer_calls import head_calls, norm_calls
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
        heads, groups, c = mixer.heads // shard.tensor, mixer.groups // shard.tensor, shard.context
        is_repeated = MIXER_NAMES[mixer.names].rule == "ssd" and groups > 0 and c % groups == 0
        degrees, why = {"tensor": shard.tensor, "context": c}, f"1 for {name!r}"
        raise_faults(
            divisor_faults("tensor", shard.tensor, shared)
            + divisor_faults(
                "context",
                c,
                [
                    (heads, "heads of a scan that a rank has"),
                    *[(groups, "groups of its keys that a rank has")] * (not is_repeated),
                ],
            )
            + failed(
                *(
                    (n > 1 and shard.library == "torch", at, str(n), f"{why}, or library: megatron")
                    for at, n in degrees.items()
                ),
                (c > 1 and mixer.rank > 0, "context", str(c), f"{why}, whose scan is Mamba 1's"),
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
    first = Module(convolved, decays + convolution, names_reversed(convolution) + names(decays))
    return [first, mapped, steps, Module(layer, skip, names(skip))]


def _scanned(place: BlockPlace, mixer: MixerShape, scan: Scan) -> list[Module]:
    """Convolve, scan, normalise and gate.

    Ranks that have a part of the tokens run a part of the heads over all of them; groups of keys
    that are fewer than ranks are sent to several (``ssm/mamba_context_parallel.py`` and
    ``ssm/gated_delta_net.py`` of Megatron-Core). What is sent is laid out anew before and after.
    """
    called, path = MIXER_NAMES[mixer.names], f"{place.prefix}.{MIXER_NAMES[mixer.names].path}"
    shard, c, kernels = place.shard, place.shard.context, scan_table()[scan.rule]
    sent = quantities(replace(scan, groups=max(scan.groups, c)))
    inputs = [sent[name] for counts in called.maps.values() for name in Counter(counts).elements()]
    channels = scan.heads * scan.value_size + 2 * scan.groups * scan.key_size
    gains = scan.heads * scan.value_size if called.whole_norm else scan.value_size
    vectors: tuple[Parameter, ...] = tuple(
        (f"{path}.{name}", (scan.heads,)) for name in called.vectors
    )
    convolution = weight_and_bias(f"{path}.conv1d", channels, 1, mixer.kernel, bias=mixer.biased)
    norm = weight_and_bias(f"{path}.{called.norm}", gains, bias=False)
    apart = kernels.get("norm", {"passes": 0.0, "kernels": 0})
    own = replace(scan, tokens=place.tokens, heads=scan.heads // c, groups=max(1, scan.groups // c))
    each, moved = quantities(own), (sum(inputs), sent["values"]) if c > 1 else (0.0, 0.0)
    norm_bytes = ELEMENT_BYTES * apart["passes"] * each["values"]
    copied_bytes = ELEMENT_BYTES * (total(own, called.copied) + 6 * moved[0] + 4 * moved[1])
    layer = Layer(
        f"{path}.scan",
        matmul_flops=scan_operations(own),
        matmul_bytes=float(ELEMENT_BYTES * 2 * (each["values"] + each["keys"])),
        vector_bytes=norm_bytes + copied_bytes,
        fused_bytes=ELEMENT_BYTES * passes_of("fused_addition") * each["values"] * (norm_bytes > 0)
        + copied_bytes,
        norm_bytes=norm_bytes,
        wide_norm=True,
        saved_elements=total(own, kernels["kept"]["narrow"]),
        saved_bytes=WIDE_BYTES * total(own, kernels["kept"]["wide"]),
        kernels=1
        + apart["kernels"]
        + sum(called.copied.values()) // 2
        + (len(inputs) + 4) * (c > 1),
        matrix=own,
        calls=(() if called.whole_norm else norm_calls(shard, numels(norm), heads=True))
        + (head_calls(shard, inputs, sent["values"]) if c > 1 else ()),
    )
    parameters = vectors + convolution + norm
    ready = (f"{path}.{name}" for name in called.ready)
    return [Module(layer, parameters, tuple(name for name in ready if name in names(parameters)))]

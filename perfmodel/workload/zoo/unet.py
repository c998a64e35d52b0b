"""The U-Net of Stable Diffusion XL as diffusers builds it."""

from __future__ import annotations

from perfmodel.workload.model import Layer, Workload
from perfmodel.workload.sample import Sample
from perfmodel.workload.zoo.image_layers import Image
from perfmodel.workload.zoo.layers import (
    ACTIVATION_PASSES,
    ELEMENT_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
    weight_and_bias,
)
from perfmodel.workload.zoo.unet_parts import (
    Condition,
    Parts,
    group_norm,
    plain_convolution,
    residual_block,
    transformer,
)

CHANNELS = (320, 640, 1280)
"""Of the three resolutions."""
DEPTHS = (0, 2, 10)
"""Blocks of each transformer at the three resolutions; Podell et al. 2023, table 1."""
LAYERS = 2
"""Residual blocks of a resolution on the way down; one more on the way up."""
LATENT_CHANNELS, SHRUNK = 4, 8
"""Channels of the autoencoder's code, and pixels of a side that become one of it."""
TIME_WIDTH, TIME_FEATURES, ADDED_FEATURES = 1280, 320, 2816
"""Width of the time's embedding; sinusoids of the time; pooled text and sizes of the picture."""
TEXT_TOKENS, TEXT_WIDTH = 77, 2048

SDXL = "stable-diffusion-xl-base-1.0"


def unet(*, dtype: str, image_size: int) -> Workload:
    """U-Net of Podell et al. 2023 (arXiv 2307.01952), which learns to tell the noise of a code.

    The autoencoder and the text encoders, which are not trained, are not part of it.
    """
    side = max(1, image_size // SHRUNK)
    code = Image(LATENT_CHANNELS, side, side)
    builder = _Builder(Condition(TIME_WIDTH, TEXT_TOKENS, TEXT_WIDTH))
    builder.embed("time_embedding", TIME_FEATURES)
    builder.embed("add_embedding", ADDED_FEATURES)
    image = builder.convolve("conv_in", code, CHANNELS[0])
    image = builder.go_down(image)
    image = builder.turn(image)
    image = builder.go_up(image)
    builder.add(group_norm("conv_norm_out", image, activation=True), "end")
    builder.convolve("conv_out", image, LATENT_CHANNELS, stage="end")
    return assemble(
        SDXL,
        builder.parts,
        dtype=dtype,
        sample=Sample("image", f"of {image_size} x {image_size}", is_image=True),
        source="diffusers UNet2DConditionModel; Podell et al. 2023, arXiv 2307.01952",
        input_elements=float(code.elements + TEXT_TOKENS * TEXT_WIDTH),
        output_elements=float(code.elements),
        registered=builder.registered(),
    )


STAGES = ("begin", "time_embedding", "add_embedding", "down", "up", "middle", "end")
"""In the order in which diffusers registers them."""


class _Builder:
    """Collects parts in the order of execution, and parameters in that of registration."""

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self.parts: list[Module] = []
        self.stages: dict[str, list[Parameter]] = {stage: [] for stage in STAGES}
        self.skipped: list[Image] = []

    def registered(self) -> list[Parameter]:
        """All parameters as diffusers registers them."""
        return [parameter for stage in STAGES for parameter in self.stages[stage]]

    def add(self, part: Module, stage: str) -> None:
        """Append a part whose parameters are registered next in its stage."""
        self.parts.append(part)
        self.stages[stage] += part.parameters

    def embed(self, name: str, features: int) -> None:
        """Map features of the time, or of what is added to it, twice."""
        for number, inputs in ((1, features), (2, TIME_WIDTH)):
            place = f"{name}.linear_{number}"
            self.add(
                linear(
                    place,
                    1,
                    inputs,
                    TIME_WIDTH,
                    saved_elements=float(inputs * number),
                    kernels=2,
                    parameters=weight_and_bias(place, TIME_WIDTH, inputs),
                    vector_elements=float(ACTIVATION_PASSES * TIME_WIDTH),
                ),
                name,
            )

    def convolve(self, name: str, image: Image, channels: int, stage: str = "begin") -> Image:
        """Append a convolution that keeps the size."""
        part, out = plain_convolution(name, image, channels)
        self.add(part, stage)
        return out

    def go_down(self, image: Image) -> Image:
        """Blocks of each resolution, whose results wait for the way up."""
        self.skipped.append(image)
        for place, (channels, depth) in enumerate(zip(CHANNELS, DEPTHS, strict=True)):
            name = f"down_blocks.{place}"
            pairs = []
            for layer in range(LAYERS):
                pairs.append(self._pair(name, layer, image, channels, depth))
                image = Image(channels, image.height, image.width)
                self.skipped.append(image)
            self._register(pairs, "down")
            if place < len(CHANNELS) - 1:
                part, image = plain_convolution(
                    f"{name}.downsamplers.0.conv", image, channels, stride=2
                )
                self.add(part, "down")
                self.skipped.append(image)
        return image

    def turn(self, image: Image) -> Image:
        """A transformer between two residual blocks at the lowest resolution."""
        name, channels = "mid_block", CHANNELS[-1]
        first = residual_block(f"{name}.resnets.0", image, channels, self.condition)
        middle = transformer(f"{name}.attentions.0", image, DEPTHS[-1], self.condition)
        last = residual_block(f"{name}.resnets.1", image, channels, self.condition)
        for each in (first, middle, last):
            self.parts += each.parts
        for each in (middle, first, last):
            self.stages["middle"] += each.registered
        return image

    def go_up(self, image: Image) -> Image:
        """Blocks that also see what waited, and the image at twice the sides after each."""
        for place, (channels, depth) in enumerate(
            zip(reversed(CHANNELS), reversed(DEPTHS), strict=True)
        ):
            name = f"up_blocks.{place}"
            pairs = []
            for layer in range(LAYERS + 1):
                waiting = self.skipped.pop()
                joined = Image(image.channels + waiting.channels, image.height, image.width)
                self.add(_join(f"{name}.concat.{layer}", joined), "up")
                pairs.append(self._pair(name, layer, joined, channels, depth))
                image = Image(channels, image.height, image.width)
            self._register(pairs, "up")
            if place < len(CHANNELS) - 1:
                waiting = self.skipped[-1]
                image = Image(channels, waiting.height, waiting.width)
                self.add(_grow(f"{name}.upsamplers.0", image), "up")
                part, image = plain_convolution(f"{name}.upsamplers.0.conv", image, channels)
                self.add(part, "up")
        return image

    def _pair(
        self, name: str, layer: int, image: Image, channels: int, depth: int
    ) -> tuple[Parts, Parts | None]:
        """A residual block, and a transformer after it where the resolution has one."""
        block = residual_block(f"{name}.resnets.{layer}", image, channels, self.condition)
        self.parts += block.parts
        if not depth:
            return block, None
        out = Image(channels, image.height, image.width)
        attended = transformer(f"{name}.attentions.{layer}", out, depth, self.condition)
        self.parts += attended.parts
        return block, attended

    def _register(self, pairs: list[tuple[Parts, Parts | None]], stage: str) -> None:
        """Transformers are registered before residual blocks."""
        for _, attended in pairs:
            self.stages[stage] += attended.registered if attended else ()
        for block, _ in pairs:
            self.stages[stage] += block.registered


def _join(name: str, joined: Image) -> Module:
    """Put two maps into one."""
    moved = float(2 * ELEMENT_BYTES * joined.elements)
    return Module(Layer(name, vector_bytes=moved, fused_bytes=moved))


def _grow(name: str, image: Image) -> Module:
    """Repeat each pixel."""
    moved = 1.25 * ELEMENT_BYTES * image.elements
    return Module(Layer(name, vector_bytes=moved, fused_bytes=moved))

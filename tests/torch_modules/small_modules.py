"""Modules for the tests of captures: a residual network, a decoder, and ones that cannot be."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions with batch normalisation, and the shortcut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """torchvision's, by its published architecture."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class Decoder(nn.Module):
    """A decoder of one block with a tied head, that is called by name and returns a dict."""

    def __init__(self, width: int = 32, vocabulary: int = 50) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            [
                nn.ModuleDict(
                    {
                        "norm": nn.LayerNorm(width),
                        "qkv": nn.Linear(width, 3 * width),
                        "out": nn.Linear(width, width),
                    }
                )
            ]
        )
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Any, labels: Any) -> Any:
        x = self.table(ids)
        block = self.blocks[0]
        q, k, v = block["qkv"](block["norm"](x)).unflatten(-1, (3, 4, -1)).unbind(-3)
        heads = [each.transpose(1, 2) for each in (q, k, v)]
        y = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + functional.dropout(block["out"](y.transpose(1, 2).flatten(2)), 0.1, self.training)
        logits = self.head(x)
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "x": x}


class Stack(nn.Module):
    """Two blocks between a table and a head, called with words and labels; returns the loss."""

    def __init__(self, width: int = 16, vocabulary: int = 20) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(2)
        )
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Any, labels: Any) -> Any:
        x = self.table(ids)
        for block in self.blocks:
            x = x + block(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


class Branching(nn.Module):
    """Goes on as the values of a tensor say."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = self.map(x)
        return 2 * y if y.sum() > 0 else y


def real_step(module: nn.Module, loss: Any) -> tuple[list[str], float]:
    """Ready order by hooks, and bytes that are saved, in a step on real tensors."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    own = {each.untyped_storage().data_ptr() for each in (*module.parameters(), *module.buffers())}
    order: list[str] = []
    held: dict[int, int] = {}
    storages = []
    for parameter in names:
        parameter.register_post_accumulate_grad_hook(lambda p: order.append(names[p]))

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        storages.append(storage)
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = loss(module)
    value.backward()
    return order, float(sum(held.values()))

"""Sequences packed from documents that do not see each other."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.errors import Fault, InputError
from perfmodel.workload.kernels.shapes import Attention
from perfmodel.workload.model import Layer, Workload


def pack_documents(workload: Workload, tokens: int) -> Workload:
    """Return the model with attention within documents of so many tokens, side by side.

    Of documents of unlike lengths that is the mean of the squares over the mean, which attention's
    work follows.
    Raises `InputError`: a model without attention, whose documents are never apart; documents
        longer than a sequence; attention that ranks share by tokens.
    """
    if not any(isinstance(layer.matrix, Attention) for layer in workload.layers):
        allowed = "nothing: the model has no attention that would tell documents apart"
        raise InputError(Fault("document_length", str(tokens), allowed))
    return replace(workload, layers=tuple(_packed(layer, tokens) for layer in workload.layers))


def _packed(layer: Layer, tokens: int) -> Layer:
    attention = layer.matrix
    if not isinstance(attention, Attention):
        return layer
    if attention.keys is not None or attention.blocks > 1:
        text = f"{tokens} with keys of other ranks or of another sequence"
        raise InputError(Fault("document_length", text, "self-attention of whole sequences"))
    if tokens > attention.tokens:
        allowed = f"at most the {attention.tokens} tokens of a sequence"
        raise InputError(Fault("document_length", str(tokens), allowed))
    documents = round(attention.tokens / tokens)
    share = tokens / attention.tokens
    return replace(
        layer,
        matmul_flops=layer.matmul_flops * share,
        score_elements=layer.score_elements * share,
        matrix=replace(
            attention,
            tokens=attention.tokens // documents,
            sequences=attention.sequences * documents,
        ),
    )

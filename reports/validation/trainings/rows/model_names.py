"""Models as tables write them: name in the zoo, image size and sequence length."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from perfmodel.workload import zoo
from perfmodel.workload.model import Workload
from perfmodel.workload.zoo import bert, bert_block
from perfmodel.workload.zoo.convolution_nets import resnet

_NAMES: tuple[tuple[str, str], ...] = (
    (r"resnet(18|34|50|101|152)(?:v?15)?", r"resnet\1"),
    (r"resnext(50|101)32x(4|8)d", r"resnext\1-32x\2d"),
    (r"vgg(16|19)", r"vgg\1"),
    (r"inceptionv3", "inception-v3"),
    (r"alexnet", "alexnet"),
    (r"vi?tb(?:ase)?(?:patch)?16", "vit-b-16"),
    (r"bert(?:base)?", "bert-base"),
    (r"bertl(?:arge)?", "bert-large"),
    (r"gpt2(?:small|117m|124m)?", "gpt2"),
    (r"gpt2(medium|large|xl)", r"gpt2-\1"),
)
"""Spelling of a model with nothing but letters and digits, and its name in the zoo."""

_BESIDE_THE_NAME = re.compile(
    r"^.*/(?=[a-z])|\((?:[^()]*)\)|\b(?:imagenet|ilsvrc\w*|pytorch|torchvision|hugging ?face|hf|"
    r"(?:un)?cased|pre-?train\w*|phase[ -]?[12]|squad\w*|(?:seq\w*[ -]?(?:len\w*)?[ =:]*)\d+)\b"
    r"|\bcifar[ -]?(?:100?)?\b"
)
"""What stands beside the name: folder, remarks in brackets, data set, phase, sequence length."""
_LENGTH = re.compile(r"\b(?:seq\w*|tokens)[ _-]?(?:len\w*)?[ =:]*(\d{2,5})\b|\b(\d{2,5})[ -]tokens")
_CIFAR = re.compile(r"cifar")
CIFAR_SIZE = 32
"""Height and width of CIFAR's images (Krizhevsky 2009)."""
_PHASE_1, _PHASE_2, _SQUAD = 128, 512, 384
"""Tokens in both phases of BERT's pre-training (Devlin et al. 2018), and in its SQuAD example."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model of the zoo; None: the zoo's own size."""

    name: str
    sequence_length: int | None = None
    image_size: int | None = None
    whole_head: bool = False
    """Whether BERT's pre-training head scores every position (`zoo.bert`)."""

    @property
    def text(self) -> str:
        """As it stands in tables of a report."""
        if self.image_size is not None:
            return f"{self.name} at {self.image_size}x{self.image_size}"
        return f"{self.name} for pre-training" if self.whole_head else self.name


def read_model(cells: Mapping[str, str]) -> NamedModel | None:
    """Read the model of a row; None: it is not in the zoo.

    NVIDIA's own example of that name (``LanguageModeling/BERT``) trains BERT-Large.

    Examples
    --------
    >>> read_model({"model": "BERT-Large uncased, seq 512"})
    NamedModel(name='bert-large', sequence_length=512, image_size=None, whole_head=False)
    >>> read_model({"model": "ResNet-18 (CIFAR-10)"}).image_size
    32
    """
    folded = cells["model"].lower().replace("_", " ").strip()
    if re.search(r"size (?:is )?not stated", folded):
        return None
    folded = re.sub(r"^languagemodeling/bert$", "bert-large", folded)
    plain = re.sub(r"[^a-z0-9]", "", _BESIDE_THE_NAME.sub(" ", folded))
    pairs = ((re.fullmatch(pattern, plain), name) for pattern, name in _NAMES)
    name = next((match.expand(name) for match, name in pairs if match), None)
    if name is None:
        return None
    text = "; ".join(cells.get(key) or "" for key in ("model", "dataset", "source_path", "note"))
    if name.startswith(("bert", "gpt")):
        length = _sequence_length(name, cells, text.lower())
        return NamedModel(name, length, whole_head=cells.get("head") == "every position")
    if _CIFAR.search(text.lower()):  # of the other nets the classifier is another one there
        plain_net = name.startswith("resnet")
        return NamedModel(name, image_size=CIFAR_SIZE) if plain_net else None
    return NamedModel(name)


def _sequence_length(name: str, cells: Mapping[str, str], text: str) -> int | None:
    """Tokens of a sample: as stated, else of the first phase of BERT's pre-training."""
    column = cells.get("sequence_length") or cells.get("seq_len") or ""
    if column.isdigit():
        return int(column)
    if stated := _LENGTH.search(text):
        return int(stated[1] or stated[2])
    if not name.startswith("bert"):
        return None
    if "squad" in text:
        return _SQUAD
    return _PHASE_2 if re.search(r"phase[ -]?2", text) else _PHASE_1


@lru_cache(maxsize=64)
def build_named(model: NamedModel) -> Workload:
    """Build the model; of CIFAR's nets the one with a stem for small images.

    Raises `InputError`: a sequence that is too long for it.
    """
    if match := re.fullmatch(r"resnext(\d+)-(\d+)x(\d+)d", model.name):
        depth, groups, width = (int(number) for number in match.groups())
        return resnet(depth, dtype="fp32", image_size=224, groups=groups, group_width=width)
    if model.image_size == CIFAR_SIZE:
        depth = int(model.name.removeprefix("resnet"))
        return resnet(depth, dtype="fp32", image_size=CIFAR_SIZE, small_images=True)
    if model.whole_head:
        length = model.sequence_length or bert_block.POSITIONS
        return bert.bert(model.name, dtype="fp32", sequence_length=length, whole_head=True)
    return zoo.build_model(model.name, sequence_length=model.sequence_length)


def is_convolutional(model: NamedModel) -> bool:
    """Whether its matrix work is in convolutions."""
    return not model.name.startswith(("bert", "gpt", "vit"))

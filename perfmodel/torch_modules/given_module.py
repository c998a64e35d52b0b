"""Modules that a user names: by a function in a file, or by a configuration of Hugging Face.

Of a configuration transformers builds the module on the meta device: no weights are read and
nothing is fetched, so that any family works that the installed library has.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from perfmodel.errors import (
    Fault,
    InputError,
    allowed_names,
    nearest,
    refuse_if,
    require_installed,
)
from perfmodel.torch_modules.capture import CAPTURING
from perfmodel.units import format_bytes
from perfmodel.workload.configs.file_text import JsonFile, read_json
from perfmodel.workload.configs.hugging_face import config_path, name_of

FUNCTION_FIELD = "FUNCTION"
RETURNS = "a function without arguments that returns (model, batch) or (model, batch, loss)"
WITH_BATCH = """, such as, in the same file:
import torch
def with_batch():
    inputs = torch.randn(8, 3, 224, 224)
    labels = torch.zeros(8, dtype=torch.long)
    return {model}, (inputs, labels), torch.nn.CrossEntropyLoss()"""
"""What to write where a model is named, or a function that returns no batch."""


def call_function(text: str) -> tuple[Any, Any, Callable[..., Any] | None]:
    """Call ``file.py:function`` or ``package.module:function``.

    Returns
    -------
    model, batch
    loss : callable or None

    Raises
    ------
    InputError
        No such file, module or function, one that raises, or that returns something else.
    """
    place, _, name = text.rpartition(":")
    refuse_if(
        not place or not name.isidentifier(),
        FUNCTION_FIELD,
        repr(text),
        "FILE.py:FUNCTION, such as train.py:example, or package.module:example",
    )
    require_installed("torch", CAPTURING)
    module = _load(place)
    function: Any = getattr(module, name, None)
    if not callable(function):
        named = allowed_names([word for word, each in vars(module).items() if callable(each)], name)
        raise InputError(Fault(FUNCTION_FIELD, f"no function {name!r} in {place}", named))
    try:
        answer = function()
    except Exception as error:
        text = f"{type(error).__name__}: {_first_line(error)} in {name}()"
        is_model = hasattr(function, "forward")
        model = name if is_model and not isinstance(function, type) else f"{name}()"
        paste = WITH_BATCH.format(model=model) if is_model else ""
        raise InputError(Fault(FUNCTION_FIELD, text, RETURNS, paste=paste)) from error
    if not isinstance(answer, tuple) or len(answer) not in {2, 3}:
        text, paste = f"{type(answer).__name__} from {name}()", WITH_BATCH.format(model=f"{name}()")
        raise InputError(Fault(FUNCTION_FIELD, text, RETURNS, paste=paste))
    return answer[0], answer[1], answer[2] if len(answer) == 3 else None


def _load(place: str) -> ModuleType:
    """Import a file by its path, or a module from here or from where Python finds it."""
    try:
        if place.endswith(".py"):
            return _load_file(Path(place))
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            Fault(
                FUNCTION_FIELD,
                f"{type(error).__name__}: {_first_line(error)} while importing {place}",
                "a file or module that can be imported",
            )
        ) from error


def _load_file(path: Path) -> ModuleType:
    refuse_if(
        not path.is_file(), FUNCTION_FIELD, f"{str(path)!r}, which is no file", "a Python file"
    )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


FIELD = "config"
LONGEST_DEFAULT = 2048
"""Tokens of a sample where nobody says how many: loops over tokens are traced step by step."""
SOUND_SAMPLES = 16_000 * 10
"""Ten seconds at 16 kHz, where a model reads samples of sound."""
USUAL_PIXELS = 224
MOST_REAL_BYTES = 4 << 30
"""Of parameters that are built in memory, where they are asked for."""


def is_configuration(text: str) -> bool:
    """Whether a command's argument is a configuration, or a folder that has one."""
    path = Path(text)
    return path.suffix.lower() == ".json" or path.is_dir()


def hub_module(
    path: Path,
    *,
    tokens: int | None = None,
    samples: int = 1,
    name: str | None = None,
    real: bool = False,
) -> tuple[str, Any, Any]:
    """Build the module of a configuration without memory, and a batch for its forward.

    Parameters
    ----------
    path : Path
        A ``config.json`` or its folder.
    tokens : int, optional
        Of a sample; default: what the model's positions allow, at most `LONGEST_DEFAULT`.
    samples : int
    name : str, optional
        Of the model; default: as `read_config` names it.
    real : bool
        With random parameters and inputs in memory, where control flow needs their values.

    Returns
    -------
    name, model, batch

    Raises
    ------
    InputError
        A family that transformers does not have, a configuration that it cannot build, inputs that
        are not drawn here, or real parameters of more than `MOST_REAL_BYTES`.
    ExecutorUnavailable
        torch or transformers is not installed.
    """
    require_installed("torch", CAPTURING)
    require_installed("transformers", "capturing a config.json needs transformers", "transformers")
    import torch
    import transformers

    quieten: Any = transformers.logging.set_verbosity_error
    quieten()
    document = read_json(config_path(path), infinite=True)
    config = _configuration(document)
    try:
        with torch.device("meta"):
            model = _head(config, document.content)(config)
        batch = _batch(model, config, tokens, samples)
        if real:
            nbytes = sum(each.numel() * each.element_size() for each in model.parameters())
            found, most = f"{format_bytes(nbytes)} of parameters", format_bytes(MOST_REAL_BYTES)
            fewer = "as gradients are as large: a copy of the file with fewer layers"
            refuse_if(nbytes > MOST_REAL_BYTES, "--real", found, f"at most {most}, {fewer}")
            torch.manual_seed(0)
            model = type(model)(config)
            batch = {name: _drawn(each, config) for name, each in batch.items()}
    except InputError:
        raise
    except Exception as error:
        problem = (
            f"what transformers cannot build ({type(error).__name__}: {_first_line(error)[:160]})"
        )
        raise InputError(document.located(Fault(FIELD, problem, BUILDERS))) from error
    return name or name_of(document), model.train(), batch


def _drawn(value: Any, config: Any) -> Any:
    """Random words, so that tokens go to different experts, or numbers; labels of a class are 0."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    if value.is_floating_point():
        return torch.randn(value.shape)
    return torch.randint(
        int(getattr(config.get_text_config(), "vocab_size", 1)) if value.dim() > 1 else 1,
        tuple(value.shape),
    )


BUILDERS = "a family of transformers, or FILE.py:FUNCTION that builds the module"


def _configuration(document: JsonFile) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    content = document.content
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        stated = "nothing" if kind is None else repr(kind)
        if content.get("auto_map"):
            stated += ", code of its own (auto_map), which is not run,"
        close = nearest(CONFIG_MAPPING.keys(), kind) if isinstance(kind, str) else None
        hint = f" (did you mean {close!r}?)" if close else ""
        raise InputError(document.located(Fault("model_type", stated, BUILDERS + hint)))
    try:
        config = CONFIG_MAPPING[kind].from_dict(_tuples(content, CONFIG_MAPPING[kind]))
    except Exception as error:
        problem = f"what transformers refuses ({type(error).__name__}: {_first_line(error)[:160]})"
        raise InputError(document.located(Fault(FIELD, problem, BUILDERS))) from error
    for field, value in _NOT_DRAWN.items():
        if hasattr(config, field):
            setattr(config, field, value)
    return config


_NOT_DRAWN = {
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "apply_spec_augment": False,
}
"""What is drawn at random in each step, and so has no shape: layers that are skipped, inputs that
are masked."""


def _tuples(content: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Fields, with lists where transformers' class has a pair, and its own way to say infinity."""

    def pair(values: list[Any]) -> tuple[Any, ...]:
        return tuple(float(v["__float__"]) if isinstance(v, dict) else v for v in values)

    lists = {name for name, value in content.items() if isinstance(value, list)}
    pairs = {name for name in lists if isinstance(getattr(kind, name, None), tuple)}
    return {n: pair(value) if n in pairs else value for n, value in content.items()}


def _head(config: Any, content: Mapping[str, Any]) -> Any:
    """Class of the module: that of the file, or the usual one of its family."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    named = content.get("architectures") or [None]
    stated = getattr(transformers, str(named[0]), None)
    if inspect.isclass(stated) and issubclass(stated, transformers.PreTrainedModel):
        return stated
    mappings = [
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_MASKED_LM_MAPPING,
        auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
        auto.MODEL_MAPPING,
    ]
    head = next((mapping[type(config)] for mapping in mappings if type(config) in mapping), None)
    refuse_if(head is None, "architectures", repr(named[0])[:60], BUILDERS)
    return head[0] if isinstance(head, tuple) else head


def _batch(model: Any, config: Any, tokens: int | None, samples: int) -> dict[str, Any]:
    """Inputs by name, on the meta device: what the module is mainly called with, and labels."""
    import torch

    accepted = inspect.signature(model.forward).parameters
    main = model.main_input_name
    whole: dict[str, Any] = {"dtype": torch.long, "device": "meta"}
    batch: dict[str, Any] = {}
    if "input_ids" in accepted:
        batch["input_ids"] = torch.zeros(
            samples, tokens or _longest(config.get_text_config()), **whole
        )
    if main == "pixel_values" or "return_loss" in accepted:
        batch["pixel_values"] = torch.zeros(samples, *_image(config), device="meta")
    elif main in ("input_values", "input_features"):
        batch[main] = torch.zeros(samples, *_sound(config, main, tokens), device="meta")
    refuse_if(
        (main not in batch and main not in _NOT_MAIN) or _PATCHES in accepted,
        "input",
        f"{_PATCHES if _PATCHES in accepted else main} of {type(model).__name__}, which is not "
        "drawn here",
        "FILE.py:FUNCTION that returns the module and batch",
    )
    if "labels" in accepted and (labels := _labels(model, config, batch, whole)) is not None:
        batch["labels"] = labels
    if "decoder_input_ids" in accepted and "labels" not in batch and "input_ids" in batch:
        batch["decoder_input_ids"] = batch["input_ids"]
    return batch | {
        name: value
        for name, value in {"use_cache": False, "return_loss": True}.items()
        if name in accepted
    }


def _labels(model: Any, config: Any, batch: Mapping[str, Any], whole: Mapping[str, Any]) -> Any:
    """What the loss compares with; None where the outputs stand in for a loss."""
    import torch

    name = type(model).__name__
    samples = next(iter(batch.values())).shape[0]
    if name.endswith(("Classification", "MultipleChoice")) and "Token" not in name:
        config.problem_type = "single_label_classification"
        return torch.zeros(samples, **whole)
    if "input_ids" in batch:
        return torch.zeros(batch["input_ids"].shape, **whole)
    if "input_features" in batch:
        return torch.zeros(samples, int(config.max_target_positions), **whole)
    return None


def _longest(config: Any) -> int:
    offset = 2 * bool(getattr(config, "model_type", "") in _OFFSET)
    return min(
        int(getattr(config, "max_position_embeddings", None) or LONGEST_DEFAULT) - offset,
        LONGEST_DEFAULT,
    )


_OFFSET = frozenset({"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "longformer", "esm"})
"""Families whose tables of positions begin behind the padding (RoBERTa: 514 rows, 512 tokens)."""


_NOT_MAIN = ("input_ids", "inputs_embeds")
"""Names of main inputs for which others may stand."""
_PATCHES = "spatial_shapes"
"""Input of families that take patches of images of any size (SigLIP 2)."""


def _sound(config: Any, main: str, tokens: int | None) -> tuple[int, ...]:
    """Samples of sound, or bands and frames of its spectrum, in the order that a family has."""
    if main == "input_values" and not hasattr(config, "num_mel_bins"):
        return (tokens or SOUND_SAMPLES,)
    if main == "input_values":  # audio spectrogram transformers
        return int(config.max_length), int(config.num_mel_bins)
    positions = int(getattr(config, "max_source_positions", 1500))
    if bands := getattr(config, "input_feat_per_channel", None):  # speech-to-text
        return positions, int(bands)
    return int(getattr(config, "num_mel_bins", 80)), 2 * positions


def _image(config: Any) -> tuple[int, int, int]:
    """Channels, height and width of an image."""
    part = getattr(config, "vision_config", config)
    size = getattr(part, "image_size", None) or USUAL_PIXELS
    height, width = (size[0], size[-1]) if isinstance(size, list | tuple) else (size, size)
    return int(getattr(part, "num_channels", 3)), int(height), int(width)

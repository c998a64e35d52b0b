"""A user's function by file or module, called for a model and a batch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.torch_modules.capture import require_torch

FIELD = "FUNCTION"
RETURNS = "a function without arguments that returns (model, batch) or (model, batch, loss)"


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
    if not place or not name.isidentifier():
        raise InputError(
            Fault(
                FIELD,
                repr(text),
                "FILE.py:FUNCTION, such as train.py:example, or package.module:example",
            )
        )
    require_torch()
    module = _load(place)
    function = getattr(module, name, None)
    if not callable(function):
        names = [word for word, value in vars(module).items() if callable(value)]
        raise InputError(
            Fault(FIELD, f"no function {name!r} in {place}", allowed_names(names, name))
        )
    try:
        answer = function()
    except Exception as error:
        text = f"{type(error).__name__}: {_first_line(error)} in {name}()"
        raise InputError(Fault(FIELD, text, RETURNS)) from error
    if not isinstance(answer, tuple) or len(answer) not in {2, 3}:
        raise InputError(Fault(FIELD, f"{type(answer).__name__} from {name}()", RETURNS))
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
        text = f"{type(error).__name__}: {_first_line(error)} while importing {place}"
        raise InputError(Fault(FIELD, text, "a file or module that can be imported")) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(Fault(FIELD, f"{str(path)!r}, which is no file", "a Python file"))
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

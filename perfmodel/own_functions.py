"""Functions that users pass: their names, and how they are called, with what is wrong as faults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from perfmodel.errors import Fault, InputError, PerfmodelError, describe_type


def name_of(function: Callable[..., Any]) -> str:
    """Name of a function, or of what it is a part of; of one without a name "own".

    Examples
    --------
    >>> name_of(name_of), name_of(lambda: 0)
    ('name_of', 'own')
    """
    inner = getattr(function, "func", function)
    name = getattr(inner, "__name__", type(inner).__name__)
    return "own" if name == "<lambda>" else str(name)


def check_function(field: str, function: object, named: str, allowed: str) -> None:
    """Refuse what is no function, or does not take some arguments.

    `named`: the arguments in words, as many as commas say: "(ranks, nbytes)".
    Raises `InputError`: names `field`, what was found and what is `allowed`.
    """
    if not callable(function):
        raise InputError(Fault(field, describe_type(function), allowed))
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C, which does not say what it takes
        return
    try:
        signature.bind(*named.split(","))
    except TypeError as error:
        raise InputError(
            Fault(
                field,
                f"{name_of(function)}{signature}, which cannot take {named}: {error}",
                allowed,
            )
        ) from None


def call_function(
    field: str, function: Callable[..., Any], values: tuple[Any, ...], named: str, allowed: str
) -> Any:
    """Call a function, and return what it returns.

    `named`: its arguments in words, for messages.
    Raises `InputError`: it takes other arguments, or raises what is no error of perfmodel.
    """
    check_function(field, function, named, allowed)
    try:
        return function(*values)
    except PerfmodelError:
        raise
    except Exception as error:
        text = f"{name_of(function)}{named}, which raised {type(error).__name__}: {error}"
        raise InputError(Fault(field, text, allowed)) from error

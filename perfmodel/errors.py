"""All exceptions of the package, as one tree.

``PerfmodelError``
    ``InputError``            the user's file, flag or name is wrong; has all faults at once
        ``UnitError``         a quantity without a unit, or with an unknown or ambiguous one
    ``TopologyError``         a machine that cannot be built or routed
    ``ScheduleError``         a collective that is not well formed
    ``DataMismatch``          a collective that leaves wrong data behind (exit code 1)
    ``SimulationError``       the simulated program cannot finish (a deadlock)
    ``ExecutorUnavailable``   an optional dependency or device is missing
    ``MeasurementError``      a rank of a real run died or hung (exit code 1)
    ``SweepError``            a worker of a sweep was killed (exit code 1)

The message of a fault names the file, the line, the field, what was found and what is allowed.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from perfmodel.escape import printable
from perfmodel.memo import T, grouped


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong in an input.

    Parameters
    ----------
    field : str
        Dotted path of the field, or the flag.
    found : str
        What stands there.
    allowed : str
        What may stand there, as a phrase ("a bandwidth such as '25 GB/s'").
    file : str, optional
        Path of the file as the user would recognise it.
    line : int, optional
        One-based line in that file.
    paste : str, optional
        Lines to write instead, which the message ends with.
    """

    field: str
    found: str
    allowed: str
    file: str | None = None
    line: int | None = None
    paste: str = ""

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        place = f"{where}: {self.field}" if where else self.field
        text = (
            self.found
            if len(self.found) <= _FOUND_CHARACTERS
            else f"{self.found[: _FOUND_CHARACTERS - 3]}..."
        )
        allowed, hint = _without_hint(self.allowed)
        return printable(f"{place}: found {text}{hint}; allowed: {allowed}") + self.paste


_FOUND_CHARACTERS = 400
"""Characters of what was found that a message repeats."""
_HINT = re.compile(r" \(did you mean [^?]*\?\)")
"""What `allowed_names` ends with; a message has it before a list that may be long."""


def _without_hint(allowed: str) -> tuple[str, str]:
    """Split "(did you mean ...?)", with the space before it, off what is allowed; "" if absent."""
    hint = _HINT.search(allowed)
    return (allowed.replace(hint[0], "", 1), hint[0]) if hint else (allowed, "")


class PerfmodelError(Exception):
    """Base of all errors that perfmodel raises on purpose."""

    exit_code = 2


class InputError(PerfmodelError, ValueError):
    """The input is wrong; ``faults`` lists all faults at once."""

    def __init__(self, faults: Fault | Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        super().__init__("\n".join(_fault_lines(self.faults)))

    def __reduce__(self) -> tuple[type[InputError], tuple[tuple[Fault, ...]]]:
        """Keep the faults when a worker process sends the error back."""
        return type(self), (self.faults,)

    def located(self, file: str, line: int | None = None) -> InputError:
        """Return the same faults with `file` filled in where it is missing."""
        return InputError(
            replace(f, file=f.file or file, line=f.line if f.file else f.line or line)
            for f in self.faults
        )


def failed(
    *checks: tuple[object, str, str, str], file: str | None = None, line: int | None = None
) -> list[Fault]:
    """Return the faults of checks that fail: whether one does, then field, found and allowed."""
    return [
        Fault(field, found, allowed, file, line) for fails, field, found, allowed in checks if fails
    ]


def raise_faults(faults: Iterable[Fault]) -> None:
    """Raise InputError with all of the faults, each once, if there are any."""
    if found := dict.fromkeys(faults):
        raise InputError(found)


def refuse_if(
    fails: object,
    field: str,
    found: str,
    allowed: str,
    file: str | None = None,
    line: int | None = None,
) -> None:
    """Raise InputError where a check fails."""
    if fails:
        raise InputError(Fault(field, found, allowed, file, line))


@contextmanager
def changed_faults(change: Callable[[Fault], Fault]) -> Iterator[None]:
    """Raise what is wrong in an input with other faults: those that a function makes of each."""
    try:
        yield
    except InputError as error:
        raise InputError(map(change, error.faults)) from error.__cause__


def look_up(rows: Mapping[str, T], name: str, field: str, before: str = "") -> T:
    """Return what a name stands for, or raise InputError with the names that there are."""
    if name not in rows:
        raise InputError(Fault(field, repr(name), before + allowed_names(rows, name)))
    return rows[name]


class FieldErrors(InputError):
    """Faults of a section that its own validator finds together; they name its fields."""


MOST_LINES = 10
"""Faults that a message lists; `InputError.faults` has all."""

_LONG_PHRASE = 120


def _fault_lines(faults: Sequence[Fault]) -> list[str]:
    """One line per fault, ten at most; of more than ten, alike ones are counted, not repeated."""
    if len(faults) <= MOST_LINES:
        return [_line(fault, faults[:at]) for at, fault in enumerate(faults)]
    alike = grouped(
        ((each.file, re.sub(r"\d+", "N", each.field), _without_hint(each.allowed)[0]), each)
        for each in faults
    )
    groups = list(alike.values())
    rest = sum(map(len, groups[MOST_LINES:]))
    return [
        *(
            f"{own[0]}{f' (and {len(own) - 1:,} more like it)' if len(own) > 1 else ''}"
            for own in groups[:MOST_LINES]
        ),
        *([f"and {rest:,} more"] if rest else []),
    ]


def _line(fault: Fault, before: Sequence[Fault]) -> str:
    """The message of a fault; a long list of what is allowed is not repeated."""
    allowed, hint = _without_hint(fault.allowed)
    earlier = {_without_hint(each.allowed)[0] for each in before}
    same = len(allowed) > _LONG_PHRASE and allowed in earlier
    return str(replace(fault, allowed=f"as above{hint}") if same else fault)


class UnitError(InputError):
    """A quantity whose unit is missing, unknown or of the wrong kind."""


class TopologyError(PerfmodelError, ValueError):
    """A machine that cannot be built, or two devices that nothing connects."""


class ScheduleError(PerfmodelError, ValueError):
    """A collective that is not well formed."""


def check_schedule(*cases: tuple[object, str]) -> None:
    """Raise ScheduleError with what the first case that holds says is not well formed."""
    for holds, text in cases:
        if holds:
            raise ScheduleError(text)


class DataMismatch(PerfmodelError, AssertionError):
    """A collective produced wrong data: names rank, chunk, the value found and the expected one."""

    exit_code = 1


class SimulationError(PerfmodelError, RuntimeError):
    """The simulated program cannot finish: names the waiting tasks."""


class ExecutorUnavailable(PerfmodelError, RuntimeError):
    """An optional dependency or a device is missing: the message says how to get it."""


class MeasurementError(PerfmodelError, RuntimeError):
    """A rank of a real run died or hung: names the rank and what it was doing."""

    exit_code = 1


class SweepError(PerfmodelError, RuntimeError):
    """A worker of a sweep was killed: the message says which results exist and how to resume."""

    exit_code = 1


def require_installed(package: str, need: str, install: str = "'perfmodel[torch]'") -> None:
    """Raise ExecutorUnavailable where a package cannot be imported; it is not imported here.

    `need`: what needs the package, as a sentence. `install`: what pip is told to install.
    """
    if importlib.util.find_spec(package) is None:
        raise ExecutorUnavailable(f"{need}, which is not installed: pip install {install}")


def allowed_names(names: Iterable[str], found: str | None = None, *, limit: int = 40) -> str:
    """Phrase for ``Fault.allowed``: the valid names, and the one closest to `found`.

    Examples
    --------
    >>> allowed_names(["ring", "tree"], "rnig")
    "one of 'ring', 'tree' (did you mean 'ring'?)"
    """
    listed = sorted(names)
    if not listed:
        return "nothing (there is none)"
    quoted = ", ".join(repr(name) for name in listed[:limit])
    more = f", ... ({len(listed) - limit} more)" if len(listed) > limit else ""
    close = nearest(listed, found) if found else None
    hint = f" (did you mean {close!r}?)" if close else ""
    return f"one of {quoted}{more}{hint}"


def describe_type(value: object) -> str:
    """Say what a value is, for a message about its type.

    Examples
    --------
    >>> describe_type(3.5), describe_type(None)
    ('a float, 3.5', 'None')
    """
    if value is None:
        return "None"
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    text = repr(value)
    return f"{article} {name}, {text if len(text) <= 60 else f'{text[:57]}...'}"


def nearest(names: Iterable[str], found: str) -> str | None:
    """Return the name closest to `found`, or None; case and separators are ignored.

    What has it as a part is meant rather than what one letter would turn it into.

    Examples
    --------
    >>> nearest(["dgx-a100", "dgx-h100"], "DGX_A100")
    'dgx-a100'
    >>> nearest(["fp8", "fp16"], "fp18")
    'fp16'
    >>> nearest(["aws-p5", "aws-g5-48xlarge"], "aws-g5"), nearest(["oci-a100"], "a10g")
    ('aws-g5-48xlarge', None)
    """
    folded = {_folded(name): name for name in names}
    text = _folded(found)
    if text in folded:  # the search below takes a millisecond per hundred names
        return folded[text]
    numbered = text[1:] and text[-1].isdigit()  # another number is another thing
    parts = [
        each
        for each in folded
        if f"-{text}-" in f"-{each}-" or (numbered and each.startswith(text))
    ]
    if parts:
        return folded[min(parts, key=len)]
    close = difflib.get_close_matches(text, list(folded), n=3, cutoff=0.55)
    if not close:
        return None
    mistyped = [each for each in close if _differs_in_one_letter(each, text)]
    return folded[(mistyped or close)[0]]


def _differs_in_one_letter(name: str, text: str) -> bool:
    """Whether one letter is wrong: a likelier slip than one that is missing or too many."""
    return len(name) == len(text) and sum(a != b for a, b in zip(name, text, strict=False)) <= 1


def _folded(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")

"""Settings of the communication library: its version and its environment variables."""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from perfmodel.collectives.catalog import NCCL_ALGO_NAMES, NCCL_ALGORITHMS, PROTOCOLS
from perfmodel.errors import Fault, allowed_names, raise_faults
from perfmodel.files import FileModel, shipped
from perfmodel.files.spec import ShippedTable

ALGORITHM_NAMES: Mapping[str, str] = MappingProxyType(
    {name.replace("_", ""): name for name in NCCL_ALGO_NAMES}
)
"""Names of NCCL_ALGO, folded, and ours."""

PROTOCOL_NAMES: Mapping[str, str] = MappingProxyType({name: name for name in PROTOCOLS})
"""Names of NCCL_PROTO, folded, and ours."""

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Path types that a level may name, near to far; NCCL 2.30.7 ``src/include/graph.h``."""

MOST_CHANNELS = ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS")
LEAST_CHANNELS = ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS")
"""Variables that bound the channels of NCCL, the newest name first."""

_LEGACY_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
"""Levels by number; NCCL user guide, NCCL_P2P_LEVEL, legacy values 0 to 5."""

_OPS = tuple(op.replace("_", "") for op in NCCL_ALGORITHMS)
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:[-+].*)?")
OLDEST, NEWEST = (2, 0), (2, 30)
"""Releases of NCCL whose choices are known: those that ``nccl/tuner.yaml`` was read from (2.7.8 to
2.30.7), and before them what 2.4 and 2.5 brought (trees, LL128)."""

_MOST_MINOR = 99

_WHOLE = re.compile(r"\d{1,12}")


class _Variable(FileModel):
    kind: str
    used: bool
    most: int | None = None
    note: str = ""


class _Family(FileModel):
    prefix: str
    note: str


class _Variables(ShippedTable):
    variables: dict[str, _Variable]
    families: tuple[_Family, ...]
    required: dict[str, dict[str, str]]


_read_variables = shipped(_Variables, __file__, "nccl/variables.yaml")


ALLOWED_VERSIONS = (
    f"a version of NCCL such as '2.18.3', from {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]} "
    f"(a later {NEWEST[0]}.x is taken for {NEWEST[0]}.{NEWEST[1]})"
)


def _release_of(version: str) -> tuple[int, int] | None:
    """Major and minor version of what a user wrote; None for none of NCCL."""
    match = _VERSION.fullmatch(version)
    release = (int(match[1]), int(match[2])) if match else (0, 0)
    return release if OLDEST <= release <= (NEWEST[0], _MOST_MINOR) else None


def _version(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, str) or _release_of(value.strip()) is None:
        raise ValueError(f"{ALLOWED_VERSIONS}, as text")
    return value.strip()


def _environment(value: Any) -> Any:
    """Write values of an environment as text, as a shell would, and check names and values.

    Anything but a mapping is left for pydantic to refuse.
    """
    if not isinstance(value, Mapping):
        return value
    texts = {str(name): _as_text(setting) for name, setting in value.items()}
    raise_faults(environment_faults(texts))
    return texts


def _as_text(value: Any) -> str:
    return str(int(value) if isinstance(value, bool) else value).strip()


Version = Annotated[str | None, BeforeValidator(_version)]
Environment = Annotated[Mapping[str, str], BeforeValidator(_environment)]


class LibrarySettings(FileModel):
    """Version and environment of the library, and how its processes are laid out."""

    version: Version = None
    """Such as "2.26.2"; default: the newest that the model knows."""
    env: Environment = Field(default_factory=dict)
    """``NCCL_*`` variables, and RCCL's; see ``nccl/variables.yaml``."""
    one_process: bool = False
    """One process drives all GPUs of a host, so that its launches follow one another."""
    awaited: bool = False
    """Each collective is started on an idle GPU and waited for, as scripts do that time them one by
    one; benchmarks queue one behind the other."""

    @property
    def release(self) -> tuple[float, float]:
        """Major and minor version; (inf, inf) where none is given, which is the newest."""
        return (_release_of(self.version) if self.version else None) or (math.inf, math.inf)

    def is_on(self, name: str, *, default: bool = False) -> bool:
        """Whether a switch is on (its value is not 0)."""
        return self.env.get(name, str(int(default))) != "0"

    def count(self, *names: str) -> int | None:
        """Value of the first of these variables that is given."""
        return next((int(self.env[name]) for name in names if name in self.env), None)

    def on_network(self, network: str) -> "LibrarySettings":
        """Add the variables that the maker of a network requires; what the user sets holds."""
        required = _read_variables().required.get(network, {})
        return self.model_copy(update={"env": {**required, **self.env}})

    def level(self, name: str) -> str | None:
        """Path type that a level names, one of `LEVELS`; None where it is not given."""
        value = self.env.get(name, "").upper()
        if value.isdigit():
            return _LEGACY_LEVELS[min(int(value), len(_LEGACY_LEVELS) - 1)]
        return value or None

    def algorithms(self, op: str) -> frozenset[str] | None:
        """Algorithms that NCCL_ALGO leaves for an operation; None if it is not set."""
        return _choose_names(self.env.get("NCCL_ALGO"), ALGORITHM_NAMES, op)

    def protocols(self, op: str) -> frozenset[str] | None:
        """Protocols that NCCL_PROTO leaves for an operation; None if it is not set."""
        return _choose_names(self.env.get("NCCL_PROTO"), PROTOCOL_NAMES, op)

    def notes(self) -> tuple[str, ...]:
        """What is set but changes no prediction, as sentences."""
        sentences = []
        if self.version and self.release > NEWEST:
            newest = ".".join(map(str, NEWEST))
            sentences.append(f"NCCL {self.version} is newer than {newest}, and is taken for it")
        for name in sorted(self.env):
            variable = _read_variables().variables.get(name)
            if variable is None:
                family = next(f for f in _read_variables().families if name.startswith(f.prefix))
                sentences.append(f"{name} is ignored: {family.note}")
            elif not variable.used:
                sentences.append(
                    f"{name} is ignored" + (f": {variable.note}" if variable.note else "")
                )
        return tuple(sentences)


def settings_of(
    *,
    version: str | None = None,
    env: Mapping[str, str] | None = None,
    one_process: bool = False,
    fields: tuple[str, str] = ("version", "env"),
) -> LibrarySettings:
    """Make settings from a user's words, checked.

    `version`, `env` and `one_process`: see `LibrarySettings`. `fields`: what faults call the
    version and the environment ("--nccl-version", "--env").

    Raises `InputError`: every fault at once: an unknown variable (the nearest is named), a value
    that it does not take, something that is no version.
    """
    texts = {name: _as_text(value) for name, value in (env or {}).items()}
    faults = environment_faults(texts, fields[1])
    if version is not None and _release_of(version.strip()) is None:
        faults.insert(0, Fault(fields[0], repr(version), ALLOWED_VERSIONS))
    raise_faults(faults)
    return LibrarySettings(version=version, env=texts, one_process=one_process)


def environment_of(
    assignments: tuple[str, ...] | list[str], field: str = "--env"
) -> dict[str, str]:
    """Read ``NAME=VALUE`` words.

    Raises `InputError`: a word without an equals sign, or a name given twice with different values.
    """
    environment: dict[str, str] = {}
    faults = []
    for word in assignments:
        name, equals, value = word.partition("=")
        name = name.strip()
        if not equals or not name:
            faults.append(Fault(field, repr(word), "NAME=VALUE, such as NCCL_ALGO=Ring"))
        elif environment.get(name, value) != value:
            faults.append(Fault(field, f"{name} twice", "each variable once"))
        environment[name] = value
    raise_faults(faults)
    return environment


def environment_faults(env: Mapping[str, str], field: str = "env") -> list[Fault]:
    """Unknown variables and values that they do not take."""
    if not env:
        return []
    table, faults = _read_variables(), []
    joint = " " if field.startswith("--") else "."
    for name, value in env.items():
        variable = table.variables.get(name)
        if variable is not None:
            allowed = _allowed_values(variable, value)
            if allowed is not None:
                faults.append(Fault(f"{field}{joint}{name}", repr(value), allowed))
        elif not any(name.startswith(family.prefix) for family in table.families):
            used = [n for n, v in table.variables.items() if v.used]
            near = allowed_names(table.variables, name, limit=0).partition("(did")
            hint = f" (did{near[2]}" if near[2] else ""
            faults.append(Fault(field, repr(name), f"{allowed_names(used)}{hint}"))
    return faults


def _allowed_values(variable: _Variable, value: str) -> str | None:
    """What a variable takes, if this value is not it."""
    if variable.kind in {"algorithms", "protocols"}:
        names = ALGORITHM_NAMES if variable.kind == "algorithms" else PROTOCOL_NAMES
        return _list_fault(value, names)
    if variable.kind == "level":
        fine = value.upper() in LEVELS or value.isdecimal()
        return None if fine else allowed_names(LEVELS, value.upper())
    if variable.kind == "word":
        return None if value else "a value"
    least, most, allowed = _RANGES[variable.kind]
    most = most if variable.most is None else variable.most
    fine = _WHOLE.fullmatch(value) is not None and least <= int(value) <= most
    return None if fine else allowed + (f", at most {variable.most}" if variable.most else "")


_RANGES: Mapping[str, tuple[int, float, str]] = MappingProxyType(
    {
        "switch": (0, 1, "0 or 1"),
        "count": (1, math.inf, "a whole number above zero"),
        "whole": (0, math.inf, "a whole number, zero or more"),
        "bytes": (1, math.inf, "a whole number of bytes, without a unit"),
    }
)


def _list_fault(text: str, names: Mapping[str, str]) -> str | None:
    listed = 0
    for part in text.split(";"):
        head, colon, rest = part.rpartition(":")
        if colon and _fold(head) not in _OPS:
            return f"an operation before ':', {allowed_names(_OPS, _fold(head))}"
        for word in _split_names(rest):
            listed += 1
            if _fold(word) not in names:
                return (
                    f"{allowed_names(names, _fold(word))}, several with commas, "
                    "all others with '^' before them"
                )
    return None if listed else allowed_names(names)


def _choose_names(text: str | None, names: Mapping[str, str], op: str) -> frozenset[str] | None:
    """Ours of the names that a list leaves for an operation.

    Source of the syntax: NCCL user guide, NCCL_ALGO: names with commas, ``^`` before them for all
    others; since 2.24 ``operation:names`` with semicolons, later parts winning.
    """
    chosen: frozenset[str] | None = None
    for part in (text or "").split(";"):
        head, colon, rest = part.rpartition(":")
        named = {names[_fold(word)] for word in _split_names(rest)}
        if "collnet" in named:
            named |= {"collnet_chain", "collnet_direct"}
        if not named or (colon and _fold(head) != _fold(op)):
            continue
        every = frozenset(names.values())
        chosen = every - named if rest.strip().startswith("^") else frozenset(named)
    return chosen


def _split_names(text: str) -> list[str]:
    return [word for word in text.strip().removeprefix("^").split(",") if word.strip()]


def _fold(word: str) -> str:
    return word.strip().lower().replace("_", "").replace("+", "")

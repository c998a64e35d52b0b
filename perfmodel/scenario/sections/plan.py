"""Section ``plan``: candidate clusters for a target, with prices, power and failures."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from perfmodel.errors import Fault, UnitError
from perfmodel.files import Bandwidth, Bytes, FileModel, Nodes, Parts, Power, Seconds, check_rows
from perfmodel.scenario.sections.base import Name, Rules, Section, Switch, is_growing
from perfmodel.scenario.sections.cluster import Fabric

_MONEY = re.compile(
    r"(?P<number>\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<currency>[A-Z]{3})"
    r"(?:\s*/\s*(?P<per>\S+))?",
    re.ASCII,
)

_SIGNS = {r"\$": "USD", "\u20ac": "EUR", "\u00a3": "GBP", "\u00a5": "JPY or CNY"}

MOST_MONEY = 1e15
"""More than all there is, in any currency."""

_NOT_MONEY = "not an amount of money"

_MISTAKES = (
    *(
        (sign, f"a sign, which several currencies share; write {currency}")
        for sign, currency in _SIGNS.items()
    ),
    (",", "a comma, which may mean thousands or decimals; write 1_000.50"),
    (r"^\s*-", "less than zero"),
    (r"^\s*[\d._]+\s*(/|$)", "no currency"),
    (r"[a-z]{3}\b|^\s*[A-Z]{3}\s*\d", "a currency is three capital letters after the number"),
)
"""Patterns of common mistakes, and their explanation."""


@dataclass(frozen=True, slots=True)
class Money:
    """An amount of one currency.

    Parameters
    ----------
    amount : float
        Zero or more.
    currency : str
        Three capital letters, such as "USD".
    """

    amount: float
    currency: str


def parse_money(
    text: object, *, per: Mapping[str, float] | None = None, example: str = "100_000 USD"
) -> Money:
    """Read an amount of money.

    `text`: the user's text.
    `per`: units allowed after a slash, and their size in the unit of the result; "" if the slash
        may be left out. Default: no slash.
    `example`: for the message.
    The amount is per unit of size 1.

    Raises `UnitError`: no currency, a sign instead of one, a comma, or a price per something else.

    Examples
    --------
    >>> parse_money("120 USD/MWh", per={"kWh": 1.0, "MWh": 1000.0})
    Money(amount=0.12, currency='USD')
    """
    if isinstance(text, Money):
        return text
    units = per or {"": 1.0}
    match = _MONEY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise _make_error(text, _explain(text), example)
    unit = match["per"] or ""
    if unit not in units:
        slashes = " or ".join(f"'/{word}'" for word in units if word) or "no slash"
        reason = f"per {unit!r}" if unit else "per nothing"
        raise _make_error(text, reason, f"{example}', with {slashes}")
    amount = float(match["number"].replace("_", "")) / units[unit]
    if amount > MOST_MONEY:
        raise _make_error(text, "beyond what there is", example)
    return Money(amount, match["currency"])


def _explain(text: object) -> str:
    """Explain why a text is not money."""
    if not isinstance(text, str):
        return "no currency" if isinstance(text, int | float) else _NOT_MONEY
    return next((reason for pattern, reason in _MISTAKES if re.search(pattern, text)), _NOT_MONEY)


def _make_error(text: object, reason: str, example: str) -> UnitError:
    quoted = example if "'" in example else f"{example}'"
    return UnitError(Fault("value", f"{text!r} ({reason})", f"an amount such as '{quoted}"))


def _schema(*examples: str) -> WithJsonSchema:
    pattern = r"^\s*\d[\d_]*(\.\d+)?([eE][+-]?\d+)?\s*[A-Z]{3}(\s*/\s*\S+)?\s*$"
    shape: dict[str, Any] = {"type": "string", "pattern": pattern, "examples": list(examples)}
    return WithJsonSchema(shape)


_PER_HOUR, _PER_KWH = {"h": 1.0, "": 1.0}, {"kWh": 1.0, "MWh": 1000.0}

Price = Annotated[Money, BeforeValidator(parse_money), _schema("100_000 USD")]
"""An amount of money, such as "100_000 USD"."""

HourlyPrice = Annotated[
    Money,
    BeforeValidator(lambda v: parse_money(v, per=_PER_HOUR, example="2.50 USD/h")),
    _schema("2.50 USD/h"),
]
"""Money per hour, such as "2.50 USD/h"; "/h" may be left out."""

EnergyPrice = Annotated[
    Money,
    BeforeValidator(lambda v: parse_money(v, per=_PER_KWH, example="0.15 USD/kWh")),
    _schema("0.15 USD/kWh", "120 EUR/MWh"),
]
"""Money per kilowatt-hour, such as "0.15 USD/kWh"."""


_DATASET = re.compile(r"\s*(?P<number>[\d_.eE+]+)\s*(?P<unit>samples|tokens)\s*", re.ASCII)


_MOST_SAMPLES = 1e18
"""Samples or tokens: a hundred thousand times all that was ever written."""


def _parse_whole(value: object) -> int:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    is_whole = 0 < number <= _MOST_SAMPLES and number == int(number)
    check_rows(
        (not is_whole, f"a whole number above zero, such as 300e9, at most {_MOST_SAMPLES:g}")
    )
    return int(number)


LargeCount = Annotated[
    int, BeforeValidator(_parse_whole), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
"""A whole number above zero; "300e9" is one."""


@dataclass(frozen=True, slots=True)
class DatasetSize:
    """How much one epoch goes through: a count of samples or of tokens."""

    count: int
    unit: str


def _parse_dataset(value: object) -> DatasetSize:
    if isinstance(value, DatasetSize):
        return value
    match = _DATASET.fullmatch(value) if isinstance(value, str) else None
    try:
        count, unit = (
            (value, "samples") if match is None else (float(match["number"]), match["unit"])
        )
        return DatasetSize(_parse_whole(count), unit)
    except ValueError:
        raise ValueError("a number of samples, or '10e9 tokens'") from None


Dataset = Annotated[
    DatasetSize,
    BeforeValidator(_parse_dataset),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "examples": ["10e9 tokens"]},
            ]
        }
    ),
]

Positive = Annotated[float, Field(strict=True, gt=0, le=1e9)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Changes = Annotated[dict[Name, Any], Field(min_length=1)]
"""Dotted fields of the scenario and their values, as ``--set`` would give them."""


class TargetSection(Section):
    """How much there is to train: samples, tokens, or epochs over a data set.

    With `critical_batch` a large global batch needs more samples for the same result, as
    1 + batch / critical_batch (McCandlish et al. 2018, arXiv 1812.06162, section 2.3).
    """

    samples: LargeCount | None = None
    tokens: LargeCount | None = Field(default=None, description="of a transformer's sequences")
    epochs: Positive | None = None
    dataset: Dataset | None = Field(
        default=None, description="with `epochs`: samples, or '10e9 tokens'"
    )
    critical_batch: LargeCount | None = Field(
        default=None,
        description="gradient noise scale, samples; default: a larger batch needs no more samples",
    )
    reference_batch: LargeCount | None = Field(
        default=None,
        description="global batch at which the target is known to suffice; default: a small one",
    )

    def _rules(self) -> Rules:
        return (
            (
                (self.samples, self.tokens, self.epochs).count(None) != 2,
                "exactly one of 'samples', 'tokens' and 'epochs'",
            ),
            (
                (self.epochs is None) != (self.dataset is None),
                "'dataset' together with 'epochs', and only then",
            ),
            (
                self.reference_batch is not None and self.critical_batch is None,
                "'reference_batch' together with 'critical_batch' only",
            ),
        )


class PurchaseSection(FileModel):
    """A node that is bought: its price is spread over the hours in which it is used."""

    price_per_node: Price = Field(description="with its share of switches, racks and installation")
    years: Positive = Field(description="until it is written off")
    utilisation: Share = Field(
        default=1.0, description="share of those years in which it is used for something"
    )


class PowerSection(Section):
    """What a candidate draws while it trains, and what electricity costs."""

    per_node: Power | None = Field(default=None, description="of a whole node under load")
    per_gpu: Power | None = Field(
        default=None, description="default: what `topologies/gpus.yaml` says of its board (TDP)"
    )
    factor: Positive = Field(
        default=1.0, description="draw of the node over that of its GPUs, with `per_gpu` or TDP"
    )
    pue: Annotated[float, Field(strict=True, ge=1, le=1e3)] = Field(
        default=1.0, description="power usage effectiveness of the building: cooling, losses"
    )
    energy_price: EnergyPrice | None = Field(
        default=None, description="default: energy costs nothing extra, as in a rent"
    )

    def _rules(self) -> Rules:
        return (
            (
                self.per_node is not None and {"per_gpu", "factor"} & self.model_fields_set,
                "'per_node', or 'per_gpu' and 'factor', not both",
            ),
        )


class SpotSection(FileModel):
    """A spot offer: nodes that are taken away, and others that come in their place.

    The job trains on with those that it has, from its last checkpoint, as quickly by node as all of
    them together; it pays for those that it has.
    """

    interrupted_every: Annotated[Seconds, Field(gt=0)] = Field(
        description="mean time until one node is taken away"
    )
    back_after: Annotated[Seconds, Field(gt=0)] = Field(
        description="mean time until another comes in its place"
    )


class CandidateSection(Section):
    """A cluster that might do: hardware, sizes, and what it costs."""

    name: Name
    node: Name = Field(description="a node template by name or file: see `perfmodel topology list`")
    fabric: Fabric | None = None
    nodes: Annotated[tuple[Nodes, ...], Field(min_length=1)] = Field(
        description="sizes to consider, growing"
    )
    gpus_per_node: Parts | None = Field(default=None, description="default: all of a node's")
    price_per_gpu_hour: HourlyPrice | None = Field(default=None, description="of renting")
    purchase: PurchaseSection | None = None
    power: PowerSection | None = None
    spot: SpotSection | None = Field(default=None, description="default: nodes stay")
    mtbf_per_node: Annotated[Seconds, Field(gt=0)] | None = Field(
        default=None, description="instead of that of `failures`"
    )
    set: Changes | None = Field(
        default=None,
        description="fields of the scenario that differ, such as training.batch_per_gpu",
    )

    def _rules(self) -> Rules:
        return (
            (
                self.price_per_gpu_hour is not None and self.purchase is not None,
                "'price_per_gpu_hour' (rented) or 'purchase' (bought), not both",
            ),
            (not is_growing(self.nodes), "'nodes' that grow, such as [1, 2, 4, 8]"),
        )


class FailureSection(Section):
    """What breaks, and what is done about it: checkpoints and restarts.

    Default of `checkpoint_every`: the interval that wastes least (Daly 2006).
    """

    mtbf_per_node: Annotated[Seconds, Field(gt=0)] | None = Field(
        default=None,
        description="mean time between failures of one node that stop the job; default: `prices`",
    )
    restart: Seconds = Field(description="from a failure to the first new step: notice, reload")
    checkpoint_write: Seconds | None = Field(
        default=None, description="how long training stands still for one checkpoint"
    )
    checkpoint_size: Bytes | None = Field(
        default=None, description="default: parameters and optimizer states, as on one GPU"
    )
    storage_bandwidth: Bandwidth | None = Field(
        default=None, description="at which a checkpoint is written, while training stands still"
    )
    checkpoint_every: Annotated[Seconds, Field(gt=0)] | None = Field(
        default=None, description="training time between checkpoints"
    )
    runs: Annotated[int, Field(strict=True, ge=1, le=10_000)] = Field(
        default=1000, description="trainings to simulate, for the spread of their wall time"
    )

    def _rules(self) -> Rules:
        return (
            (
                (self.checkpoint_write is None) == (self.storage_bandwidth is None),
                "either 'checkpoint_write' (a time) or 'storage_bandwidth'",
            ),
            (
                self.checkpoint_size is not None and self.storage_bandwidth is None,
                "'checkpoint_size' together with 'storage_bandwidth' only",
            ),
        )


class UpgradeSection(Section):
    """Something better that could be had for every candidate, and its price."""

    name: Name
    set: Changes = Field(
        description="such as {what_if.network_bandwidth: 2}; of the plan, plan.failures only"
    )
    candidates: Annotated[tuple[Name, ...], Field(min_length=1)] | None = Field(
        default=None, description="names of those that it is offered for; default: all"
    )
    price: Price | None = Field(default=None, description="once, for the whole cluster")
    price_per_node: Price | None = Field(default=None, description="once, for each node")
    price_per_gpu_hour: HourlyPrice | None = Field(
        default=None, description="more rent for each GPU"
    )

    def _rules(self) -> Rules:
        return (
            (
                (self.price, self.price_per_node, self.price_per_gpu_hour).count(None) < 2,
                "one of 'price', 'price_per_node' and 'price_per_gpu_hour'",
            ),
        )


class PlanSection(FileModel):
    """Candidate clusters for a target; `cluster` and `scale` of the scenario are left aside."""

    target: TargetSection
    candidates: Annotated[tuple[CandidateSection, ...], Field(min_length=1)]
    failures: FailureSection | None = Field(
        default=None, description="default: nothing ever fails, and nothing is checkpointed"
    )
    prices: Name | None = Field(
        default=None,
        description="for candidates that state none: 'list', the public prices and rates of "
        "failures that ship with perfmodel, or a file of one's own",
    )
    search_batch: Switch = Field(
        default=False,
        description="for each candidate the batch per GPU that fits and is quickest to the target, "
        "from training.batch_per_gpu on",
    )
    deadline: Annotated[Seconds, Field(gt=0)] | None = None
    budget: Price | None = Field(default=None, description="for the training, not for the purchase")
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] | None = Field(
        default=None, description="of all money here; default: that of most prices"
    )
    upgrades: tuple[UpgradeSection, ...] = ()

    @property
    def money(self) -> dict[str, Money]:
        """All money of the plan, by dotted field within it."""
        return dict(_find_money(self, ""))

    @property
    def paid_in(self) -> str | None:
        """The currency, that of most prices; None if there is no money."""
        used = Counter(money.currency for money in self.money.values())
        return self.currency or next((word for word, _ in used.most_common(1)), None)


def _find_money(value: object, field: str) -> Iterator[tuple[str, Money]]:
    """Find the money in a section, in several of them, or in an amount itself."""
    if isinstance(value, Money):
        yield field, value
    elif isinstance(value, FileModel | tuple):
        for name, member in value if isinstance(value, FileModel) else enumerate(value):
            yield from _find_money(member, f"{field}.{name}".removeprefix("."))

"""The closed vocabulary of units: what is read, what is refused, and what is suggested."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfmodel.errors import InputError, UnitError
from perfmodel.units import (
    BANDWIDTHS,
    BYTES,
    FLOP_RATES,
    LIMITS,
    TIMES,
    format_bandwidth,
    format_bytes,
    format_time,
    parse_bandwidth,
    parse_bytes,
    parse_flop_rate,
    parse_time,
)

FAMILIES = {
    parse_bytes: BYTES,
    parse_bandwidth: BANDWIDTHS,
    parse_time: TIMES,
    parse_flop_rate: FLOP_RATES,
}

KINDS = {
    parse_bytes: "a size",
    parse_bandwidth: "a bandwidth",
    parse_time: "a time",
    parse_flop_rate: "a compute rate",
}


def ends(parse):
    """Smallest and largest quantity of a kind, in SI units."""
    least, most = (text.split() for text in LIMITS[KINDS[parse]])
    return [float(number) * FAMILIES[parse][unit] for number, unit in (least, most)]


def within(parse, value):
    least, most = ends(parse)
    return least <= value <= most


@pytest.mark.parametrize(
    ("parse", "text", "si"),
    [
        (parse_bytes, "25 MiB", 25 * 1024**2),
        (parse_bytes, "25 MB", 25e6),
        (parse_bytes, "1_000 B", 1000),
        (parse_bytes, "25MiB", 25 * 1024**2),
        (parse_bytes, " .5 kB ", 500),
        (parse_bandwidth, "400 Gbit/s", 50e9),
        (parse_bandwidth, "400 Gbps", 50e9),
        (parse_bandwidth, "25 GB/s", 25e9),
        (parse_bandwidth, "1 GiB/s", 1024**3),
        (parse_time, "1.3 us", 1.3e-6),
        (parse_time, "1.3 \u00b5s", 1.3e-6),  # micro sign
        (parse_time, "1.3 \u03bcs", 1.3e-6),  # Greek mu
        (parse_time, "1e-3 s", 1e-3),
        (parse_time, "2 h", 7200),
        (parse_time, "5 days", 432_000),
        (parse_time, "1 Hour", 3600),
        (parse_time, "3 sec", 3),
        (parse_time, "20 minutes", 1200),
        (parse_time, "2 milliseconds", 2e-3),
        (parse_flop_rate, "312 TFLOP/s", 312e12),
    ],
)
def test_reads(parse, text, si):
    assert parse(text) == pytest.approx(si, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text", "suggestion"),
    [
        (parse_bandwidth, "200 Gb/s", "did you mean 'GB/s' or 'Gbit/s' or 'Gbps'"),
        (parse_bandwidth, "16 GT/s", "transfers do not say how wide the link is"),
        (parse_bytes, "25 mb", "did you mean 'MB'"),
        (parse_bytes, "1 Mib", "did you mean 'MiB'"),
        (parse_bytes, "25 M", "'MiB'"),
        (parse_bytes, "25 Gbit", "one of 'B'"),
        (parse_time, "3 weeks", "one of 'd', 'h'"),
        (parse_time, "3 MS", "did you mean 'ms'"),
        (parse_flop_rate, "312 TFLOPS", "did you mean 'TFLOP/s'"),
    ],
)
def test_unknown_units_are_refused_with_a_suggestion(parse, text, suggestion):
    with pytest.raises(UnitError) as caught:
        parse(text, "link.bandwidth")
    message = str(caught.value)
    assert message.startswith("link.bandwidth: found ")
    assert repr(text) in message
    assert "unknown unit" in message
    assert suggestion in message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MiB",
        "nan MiB",
        "inf B",
        "-inf B",
        "1__0 B",
        "_1 B",
        "1.5.2 B",
        "0x10 B",
        "1,5 B",
        "\u0661 B",
        "1e999 B",
        "25",
        25,
        2.5,
        True,
        None,
        ["25 MiB"],
        {"MiB": 25},
    ],
)
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(UnitError, match=r"allowed: a size such as '25 MiB'"):
        parse_bytes(text)


def test_a_bare_number_is_told_that_its_unit_is_missing():
    for bare in (25, "25", 0.5):
        with pytest.raises(InputError, match="no unit"):
            parse_bandwidth(bare)


@given(
    st.sampled_from([(parse, unit) for parse, family in FAMILIES.items() for unit in family]),
    st.floats(min_value=1e-6, max_value=1e6, allow_nan=False),
)
def test_every_unit_scales_linearly(family, number):
    parse, unit = family
    assume(within(parse, number * FAMILIES[parse][unit]) and within(parse, FAMILIES[parse][unit]))
    assert parse(f"{number!r} {unit}") == pytest.approx(number * parse(f"1 {unit}"), rel=1e-12)


@given(
    st.sampled_from(
        [
            (format_bytes, parse_bytes),
            (format_bandwidth, parse_bandwidth),
            (format_time, parse_time),
        ]
    ),
    st.floats(min_value=-9, max_value=15).map(lambda exponent: 10**exponent),
)
def test_what_is_written_is_read_back_to_four_digits(pair, value):
    write, read = pair
    assume(within(read, value * 0.999) and within(read, value * 1.001))
    assert read(write(value)) == pytest.approx(value, rel=6e-4)


@given(st.sampled_from(sorted(BANDWIDTHS)))
def test_bits_are_an_eighth_of_bytes(unit):
    if "bit" in unit or unit.endswith("bps"):
        byte = unit.replace("bit", "B").replace("bps", "B/s")
        assert BANDWIDTHS[byte] == 8 * BANDWIDTHS[unit]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (format_bytes(0), "0 B"),
        (format_bytes(2**20 - 1), "1 MiB"),
        (format_bytes(1536), "1.5 KiB"),
        (format_bandwidth(25e9), "25 GB/s"),
        (format_time(0), "0 s"),
        (format_time(999.99e-6), "1 ms"),
        (format_time(5400), "1.5 h"),
        (format_time(math.inf), "inf ps"),
    ],
)
def test_writes_in_the_unit_that_reads_best(written, text):
    assert written == text


@given(
    st.sampled_from([(parse, unit) for parse, family in FAMILIES.items() for unit in family]),
    st.floats(min_value=-308, max_value=308),
)
def test_what_no_machine_has_is_refused(family, exponent):
    """Whatever the unit, a quantity is read exactly where it is within the limits of its kind."""
    parse, unit = family
    text = f"1e{exponent:.0f} {unit}"
    value = float(f"1e{exponent:.0f}") * FAMILIES[parse][unit]
    if within(parse, value):
        assert parse(text) == value
    elif (
        not math.isinf(value)
        and value > 0
        and not any(end == pytest.approx(value, rel=1e-3) for end in ends(parse))
    ):
        with pytest.raises(UnitError, match="beyond what there is"):
            parse(text)

"""Damage to a text: as typing, torn files, other programs and attackers do it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

VALUES = (
    "0",
    "-1",
    "1",
    "3",
    "1.5",
    "-0.0",
    "1e9",
    "1e308",
    "1e-308",
    "1e999",
    "9007199254740993",
    "10000000000000000000000",
    "65536",
    "1000000000",
    "2147483648",
    ".nan",
    ".inf",
    "-.inf",
    "null",
    "true",
    "''",
    "[]",
    "{}",
    "[1, 2]",
    "{a: 1}",
    "x",
    "'1'",
    "1_000",
    "0x10",
    "0o17",
    "2026-01-01",
    "~",
    "1e9 s",
    "0 s",
    "1e30 d",
    "1 fs",
    "-5 us",
    "1e290 Gbit/s",
    "0 GB/s",
    "1 B/s",
    "5 MiB",
    "1e300 PiB",
    "1 B",
    "0.5 B",
    "nan GB/s",
    "5 mb",
    "1 W",
    "1 USD",
    "1 USD/h",
    "infinite",
    "'gpu[0-99999999]'",
    "'gpu[5-1]'",
    "'n[0-11]/cpu0'",
    "../../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "/",
    ".",
    "dgx-a100",
    "nccl",
    "auto",
    '"\\e[31mred\\a"',
    '"\u202eabc"',
    "'=1+1'",
    '"[/foo]"',
    "':smile:'",
    '"a\\0b"',
    "'" + 300 * "n" + "'",
    "'%s'",
    "*a",
    "&a 1",
    "!!python/object:os.system x",
    "!!binary aGVsbG8=",
    "<<: {a: 1}",
    "\u00b5s",
    "1 \u00b5s",
    "[" * 90 + "]" * 90,
)

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)

CHARACTERS = (
    "\x00\x07\x08\x1b\x7f\x85\x9b\u200b\u202e\u2028\u2066\ufeff\ud7ff\U000e0041"
    "{}[]:,&*#|>%@`'\"\\\t\r\n-0 9"
)

SCALAR = re.compile(r"(?<=[:\[,] )[^\s\[\]{},#][^\[\]{},#\n]*|(?<=\")[^\"\n]*(?=\")|\b\d[\w.]*")
"""Values of YAML, attributes of XML, and numbers."""


def damage(text: str, rng: random.Random) -> bytes:
    """Damage a text once or a few times."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(DAMAGES)(text, rng)
    data = text.encode("utf-8", "replace")
    if rng.random() < 0.03 and data:
        at = rng.randrange(len(data))
        data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return data


def _other_value(text: str, rng: random.Random) -> str:
    places = list(SCALAR.finditer(text))
    if not places:
        return text + rng.choice(VALUES)
    place = rng.choice(places)
    return text[: place.start()] + rng.choice(VALUES) + text[place.end() :]


def _swap_values(text: str, rng: random.Random) -> str:
    places = list(SCALAR.finditer(text))
    if len(places) < 2:
        return text
    first, second = sorted(rng.sample(places, 2), key=lambda place: place.start())
    return (
        text[: first.start()]
        + second[0]
        + text[first.end() : second.start()]
        + first[0]
        + text[second.end() :]
    )


def _scale_number(text: str, rng: random.Random) -> str:
    places = list(re.finditer(r"\d+", text))
    if not places:
        return text
    place = rng.choice(places)
    factor = rng.choice((0, 2, 7, 10, 1000, 10**6, 10**12, 10**20))
    return text[: place.start()] + str(int(place[0]) * factor) + text[place.end() :]


def _edit_lines(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            del lines[at]
        case 1:
            lines.insert(other, lines[at])
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines[at] = "  " + lines[at]
        case 4:
            lines[at] = lines[at].lstrip()
        case 5:
            lines = lines[: at + 1]
    return "".join(lines)


def _cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _insert_characters(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + "".join(rng.choices(CHARACTERS, k=rng.randrange(1, 5))) + text[at:]


def _rename_word(text: str, rng: random.Random) -> str:
    places = list(re.finditer(r"[a-z_]{3,}", text))
    if not places:
        return text
    place, other = rng.choice(places), rng.choice(places)
    word = rng.choice((place[0][:-1], place[0] + "\x1b", other[0], place[0].upper(), "[/foo]"))
    return text[: place.start()] + word + text[place.end() :]


def _grow(text: str, rng: random.Random) -> str:
    match rng.randrange(5):
        case 0:
            return text + BOMB
        case 1:
            return text + "x: " + "[" * 2000 + "]" * 2000
        case 2:
            return text + "".join(f"unknown{n}: {n}\n" for n in range(300))
        case 3:
            return rng.choice(("{}", "<!-- -->", "- ", "? ", "[1],")) * 3000 + text
        case _:
            return text + 'long: "' + "y" * 30_000 + '"\n'


PREFIXES = (
    "[1,0]<stdout>:",
    "> ",
    "(Worker pid=7, ip=10.0.0.1) ",
    "[rank0]: ",
    "2026-01-01T00:00:00Z ",
    "Jan  2 10:00:00 n1 app[12]: ",
    "pod-0 main ",
    "0: ",
    "node-17: ",
    "\x1b[32m",
    "\u00a0",
    "| ",
)


def _paste(text: str, rng: random.Random) -> str:
    """Wrap, prefix, glue or thin out lines, as terminals, collectors of logs and hands do."""
    lines = text.splitlines() or [""]
    match rng.randrange(6):
        case 0:
            width = rng.choice((40, 80, 100))
            rows = [line.expandtabs(8) for line in lines]
            lines = [row[at : at + width] for row in rows for at in range(0, len(row) + 1, width)]
        case 1:
            prefix = rng.choice(PREFIXES)
            lines = [prefix + line for line in lines]
        case 2:
            lines = [rng.choice(PREFIXES) + line for line in lines]
        case 3:
            column = rng.randrange(12)
            lines = [
                " ".join(c for at, c in enumerate(line.split()) if at != column) for line in lines
            ]
        case 4:
            at = rng.randrange(len(lines))
            lines[at] = re.sub(r"(?<=\S)[ \t]+(?=\S)", "", lines[at], count=1)
        case 5:
            lines += lines
    return "\n".join(lines) + "\n"


DAMAGES: tuple[Callable[[str, random.Random], str], ...] = (
    _other_value,
    _other_value,
    _other_value,
    _other_value,
    _swap_values,
    _scale_number,
    _scale_number,
    _edit_lines,
    _edit_lines,
    _cut,
    _insert_characters,
    _rename_word,
    _grow,
    _paste,
    _paste,
)

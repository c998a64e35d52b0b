"""Text of other programs as it arrives: copied from terminals and pages, or collected as logs.

Lines keep their numbers: what is removed leaves an empty line. Numbers and words of a line are
never changed, only what stands before them, and characters that no tool prints.
"""

from __future__ import annotations

import codecs
import html
import json
import quopri
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.files.read import GZIP, LARGEST_BYTES, read_bytes

_PACKED = (
    (GZIP, "a gzip archive inside of one: unpack it first"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"\xfd7zXZ", "an xz archive: unpack it first"),
    (b"BZh", "a bzip2 archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first"),
    (b"\x7fELF", "a program"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture: copy the text itself"),
    (b"\xff\xd8\xff", "a picture: copy the text itself"),
    (b"SQLite format 3", "an SQLite database"),
)

_TOO_LONG = re.compile(r"\d{1000}")
"""No tool prints so long a number; Python reads none of more than 4,300 digits."""

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_ESCAPES = re.compile(
    r"(?:\x1b|\\u001b|\\x1b|\\033|\\e|\^\[)\[[0-?]{0,40}[ -/]{0,4}[@-~]"
    r"|\x1b(?:\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[()][A-Za-z0-9])"
    r"|\[(?:0|1|4|22|24|3\d|9\d)(?:;\d{1,3})*m"  # a colour whose escape was lost
    r"|[\x0b\x0c\x0e\x0f]"
)
_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_TYPESET = str.maketrans(
    "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u201c\u201d\u201e\u2033\u2018\u2019\u2502\u2503",
    '-------""""\'\'||',
)
_ENTITY = re.compile(r"&(?:nbsp|lt|gt|amp|quot|apos|#\d{1,6}|#x[0-9a-fA-F]{1,5});")
_TAGS = r"</?(?:pre|code|span|div|br|p|samp|tt|b|i|em|strong|font{more})\b[^<>]{{0,200}}>"
_TAG = re.compile(_TAGS.format(more=""), re.IGNORECASE)
_CELL_TAG = re.compile(r"</?(?:t[rdh]|table|thead|tbody)\b[^<>]{0,200}>", re.IGNORECASE)
_XML = re.compile(rf"\s*(?!{_TAGS.format(more='|t[rdh]|table')})<[?!A-Za-z]", re.IGNORECASE)
_MARKDOWN = re.compile(r"\\([_*#|<>])|\*\*(?=\w)|(?<=\w)\*\*")
"""Marks that Markdown has before what would be a mark, and around what is bold."""
_NEWLINE = re.compile("\r\n|[\r\x85\u2028\u2029]")
_STRING = re.compile(r"^\s*(?:\{\s*\"\w+\"\s*:\s*)?[bu]?[\"']")
"""Where text begins that stands in one string of JSON or Python."""
_FEWEST_ESCAPED = 4
_MAIL = re.compile(r"(?m)=3D|^.{69,74}[^=\n]=$(?!\n\")")
"""Signs and ends of lines in quoted-printable, as mails are kept."""

PRINTED_PYTHON = (
    r"\A\s*(?:\w+\s*=\s*)?(?:(?:\w+\.)?(?:tensor|array|OrderedDict|defaultdict)\("
    r"|[\[{(\s]*'[^'\n]*'\s*[:,]|\[[\s\[(]*-?\d[\d.e+-]*[,\s]+[-\d.,e+ \[\]()]*$)"
)
"""How text begins that Python printed of its own objects; with lines."""
PRINTED = "what Python prints of a list, dictionary, array or tensor"

# ---------------------------------------------------------------- what stands before a line

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DAY = (
    rf"(?:(?:{_MONTHS})\s+\d{{1,2}},?\s+\d{{4}}|\d{{1,2}}/(?:{_MONTHS})/\d{{4}}"
    r"|\d{1,2}[./]\d{1,2}[./]\d{4})"
)
_BEFORE = re.compile(
    r"\s*(?:"
    r"\[\d+,\d+\]:?"  # Open MPI's --tag-output
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d[\d.,]*(?:Z|\s?[+-]\d\d:?\d\d)?\]?:?(?=\s|$)"
    rf"|\[?{_DAY}[,:]?\s?\d{{1,2}}:\d\d:\d\d[\d.,]*(?:\s?[AP]M)?(?:\s[+-]\d{{4}})?\]?:?(?=\s|$)"
    r"|\[?\d\d:\d\d:\d\d[\d.,]*(?:\s[AP]M)?\]?:?(?=\s|$)"
    r"|1[5-9]\d{8}\.\d{3,9}(?=\s|$)|\+\d+\.\d+s(?=\s|$)"  # seconds of a clock, or since the start
    r"|[\w./-]+\.(?:log|txt|out|err)[:-]\d+[:-]"  # grep -n over files
    r"|\[\s*\d+\.\d{3,9}\](?=\s|$)"  # seconds since the start, as dmesg and ts -s write them
    r"|std(?:out|err) [FP](?=\s|$)"  # what containerd writes behind a time
    r"|<\d{1,3}>\d(?:\s\S+){5}\s(?:-|\[[^\]]{0,200}\])"  # syslog of RFC 5424
    rf"|(?:<\d{{1,3}}>)?(?:{_MONTHS})\s+\d{{1,2}}\s+\d\d:\d\d:\d\d\s+\S+\s+"  # syslog: time, host,
    r"[\w./@-]+(?:\[\d+\])?:"  # and program
    r"|[\w.-]+\s+[\w./@-]+\[\d+\]:(?=\s|$)"  # journald, behind an ISO time
    r"|[IWEF]\d{4}\s\d\d:\d\d:\d\d\.\d+\s+\d+\s+[\w./-]+:\d+\]"  # glog
    r"|\[?(?:INFO|DEBUG|WARN|WARNING|ERROR|TRACE)\]?"  # logging
    r"(?::[\w.]+:|(?:\s*[:|]|\s-)?(?=\s|$))"
    r"|\d+:(?=\s|$)"  # srun --label
    r"|\d+\|[^|]{1,60}\|"  # pm2
    r"|\[\d+\](?=\s)(?!\s*\"?[SHR]-)"  # Hydra; ibnetdiscover's ports have a name behind them
    r"|\[(?:rank|default|trainer|worker|proc|node|pod)[-_ ]?\d+\]:?"  # torchrun
    r"|\[pod/[^\]\s]{1,200}\]"  # kubectl logs --prefix
    r"|\[[A-Za-z][\w./-]*(?:\s[\w./-]+)?\]:?(?=\s)(?!\s*\()"  # names of pods in brackets
    r"|\((?:[\w.:-]+(?:\([\w.]*\))?\s)?pid=\d+(?:,\s*ip=[\da-f.:]+)?\)"  # Ray
    r"|[\w.-]+\s*\|(?=\s|$)"  # names of containers
    r")[ \t]?"
)
_ANYWHERE = re.compile(
    r"\[[\w.,:@/-]{0,120}\]<std\w+>:?"  # mpirun, also inside of rows
    r"|[A-Za-z_]\w{0,60}\(\), [\w./+-]{1,120}:\d+,"  # function, file and line
    r"|\s\[repeated \d+x across cluster\].*$"  # Ray
)
_QUOTE = re.compile(r"\s*(?:>\s?)+")
_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})\s*[\w+-]*\s*")
_JIRA = re.compile(r"\{(?:code|noformat)(?::[^{}\n]{0,80})?\}")
_IN_QUOTES = re.compile(r'\s*"((?:[^"\\]|\\.)*)",?\s*')
_MOST_BEFORE = 6

MOST_LINES = 1_500_000
"""A log of NCCL_DEBUG=INFO of a thousand ranks has half a million."""
LONGEST_LINE = 8000
"""Characters; a matrix of 72 GPUs has a tenth. What is longer is no line of a tool's table."""
_RECORD_KEYS = ("log", "message", "msg", "textPayload", "line", "MESSAGE")


def read_pasted_text(path: Path, largest: int = LARGEST_BYTES) -> str:
    """Read a text file in any usual encoding.

    Raises
    ------
    InputError
        Unreadable, too large, packed, binary, in no encoding that is known, or with a number that
        no tool prints.
    """
    data = read_bytes(path, largest)
    packing = next((kind for magic, kind in _PACKED if data.startswith(magic)), "")
    refuse_if(packing, "file", packing, "the text that a tool printed", str(path))
    return _decode(data, str(path))


def _decode(data: bytes, file: str) -> str:
    """Decode text by its byte order mark, else UTF-16 by its zeros, UTF-8, or Windows' own code."""
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    is_binary = False
    if encoding is None and b"\0" in data[:4096]:
        pairs = len(data[:4096]) // 2
        zeros = (data[:4096:2].count(0), data[1:4096:2].count(0))
        is_binary = min(zeros) > 0.02 * pairs or max(zeros) < 0.7 * pairs
        encoding = "utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"
    try:
        text = "\0" if is_binary else data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise InputError(
                Fault("file", f"bytes that are not text ({error.reason})", f"{encoding} text", file)
            ) from None
        text = data.decode("cp1252", "replace")
    refuse_if("\0" in text, "file", "binary data", "text", file)
    if number := _TOO_LONG.search(text):
        line = text.count("\n", 0, number.start()) + 1
        raise InputError(Fault("file", "a number of 1,000 digits", "shorter ones", file, line))
    return _NEWLINE.sub("\n", text)


def is_xml(text: str) -> bool:
    """Tell whether a text begins as XML does, and not as a part of a page of HTML."""
    return _XML.match(text) is not None


def _unescaped(text: str) -> str:
    """Text that stands in one string, as programs keep what others print: its lines are lines."""
    if ("=3D" in text or "=\n" in text) and len(_MAIL.findall(text)) > 1:
        text = quopri.decodestring(text.encode()).decode("utf-8", "replace")
    if text.count("\\n") < max(_FEWEST_ESCAPED, 2 * text.count("\n")):
        return text if text.lstrip()[:1] in "<{[" else text.replace("\\t", "\t")
    return _STRING.sub("", text).replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')


def clean_characters(text: str) -> str:
    r"""Return text without colours, invisible characters and typesetting.

    Examples
    --------
    >>> clean_characters("\x1b[4mGPU0\x1b[0m\u00a0X")
    'GPU0 X'
    """
    text = _ESCAPES.sub("", _unescaped(text))
    if not text.isascii():
        text = _INVISIBLE.sub("", _SPACES.sub(" ", text)).translate(_TYPESET)
    if not is_xml(text):  # which keeps its entities
        if _ENTITY.search(text):
            text = _SPACES.sub(" ", _ENTITY.sub(lambda entity: html.unescape(entity[0]), text))
        text = _TAG.sub("", text) if ">" in text else text
        text = _CELL_TAG.sub(" ", text) if "</t" in text else text
        text = _MARKDOWN.sub(r"\1", text) if "\\" in text or "**" in text else text
    return _JIRA.sub("", text) if "{" in text else text


def clean_lines(text: str) -> list[str]:
    r"""Return the lines that a tool printed, without what others wrote around them.

    Removed are marks of quotation, fences and rules of Markdown, names of pods, ranks and
    containers, times, and whatever else stands before nearly all lines alike.

    Examples
    --------
    >>> clean_lines("> [1,0]<stdout>:# size\n> 2024-05-06T07:08:09Z 8 2 float")
    ['# size', '8 2 float']
    """
    return _without_shared_prefix(
        [_clean_line(line) for line in _without_marks(_unpack_records(text.split("\n")))]
    )


NARROWEST, WIDEST = 20, 120
"""Columns of terminals and boxes that wrap lines; tables of tools are often wider than that."""
_FEWEST_FULL, _SHARE_FULL = 4, 0.2


def wrapped_width(text: str) -> int:
    """Columns at which the lines of a text seem to be wrapped, whatever stands there; 0: not.

    No line is longer, and a fifth of them is as long.
    """
    lengths = Counter(len(line) for line in text.split("\n") if line.strip())
    width, rows = max(lengths, default=0), lengths.total()
    is_wrapped = (
        lengths[width] >= max(_FEWEST_FULL, _SHARE_FULL * rows) and NARROWEST <= width <= WIDEST
    )
    return width if is_wrapped else 0


def unwrapped(text: str, width: int) -> str:
    r"""Return text whose lines go on after so many columns; numbers of lines are kept.

    Examples
    --------
    >>> unwrapped("abc\nde\nf", 3)
    'abcde\n\nf'
    """
    lines = text.split("\n")
    joined, first = [""] * len(lines), 0
    for at, line in enumerate(lines):
        joined[first] += line
        first = at + 1 if len(line) < width else first
    return "\n".join(joined)


def _clean_line(line: str) -> str:
    if len(line) > LONGEST_LINE or _FENCE.fullmatch(line) or not line.strip("|-: \t"):
        return ""
    quoted = _IN_QUOTES.fullmatch(line)
    if quoted is not None:
        line = quoted[1].replace("\\t", "\t").replace('\\"', '"')
    rest = line.lstrip("> \t") if (mark := _QUOTE.match(line)) and mark.end() else line
    rest = rest.rstrip(" \t\\")
    line = _ANYWHERE.sub(" ", rest).rstrip() if "[" in rest or "()" in rest else rest
    cells = line.strip()
    if cells.startswith("|") and cells.endswith("|") and cells.count("|") > 1:
        return cells.replace("|", " ").replace("`", " ").strip()
    if separator := next(
        (mark for mark in "|;," if cells.count(mark) > 2 and _is_separated(cells, mark)), ""
    ):
        return line.replace(separator, " ").replace("`", " ")
    for _ in range(_MOST_BEFORE):
        before = _BEFORE.match(line)
        if before is None or not before.end():
            break
        line = line[before.end() :]
    return line.strip(" \t`") if line.strip(" \t`").startswith(("#", "[")) else line.strip("`")


def _is_separated(line: str, mark: str) -> bool:
    """Tell whether a mark separates the cells of a line; commas may be of lists of CPUs, too."""
    cells = line.split(mark)
    alone = mark == "|" or not any(" " in cell.strip() for cell in cells[1:-1])
    return alone and (
        mark != "," or any("." in cell or cell.strip()[:1].isalpha() for cell in cells)
    )


def _unpack_records(lines: list[str]) -> list[str]:
    """Lines of a container's log, where each is a JSON object with the text in one field."""
    rows = [line for line in lines if line.strip()]
    if len(rows) < 3 or not all(row.lstrip().startswith('{"') for row in rows[:3]):
        return lines
    unpacked = []
    for line in lines:
        try:
            record = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            return lines
        texts = [record[key] for key in _RECORD_KEYS if isinstance(record, dict) and key in record]
        if line.strip() and not (texts and isinstance(texts[0], str)):
            return lines
        unpacked.append(texts[0].rstrip("\n") if texts else "")
    return unpacked


_MARK = re.compile(r"([-+*|])(?!\d+\.\d+s\s|.*\|\s*$)")
_NUMBER = re.compile(r"\s*(\d{1,7})(?:[\t:|)]|\.(?=\s)|\s)")


def _without_marks(lines: list[str]) -> list[str]:
    """Return lines without what stands before each: numbers from one on, or one and the same mark.

    A mark is that of a list, of an added line, or of a box.
    """
    rows = [line for line in lines if line.strip()]
    if len(rows) < _PREFIX_LINES:
        return lines
    for pattern in (_NUMBER, _MARK):
        marks = [match[1] for row in rows if (match := pattern.match(row))]
        shared = _count_up(marks) if pattern is _NUMBER else len(set(marks)) == 1
        if shared and len(marks) >= 0.9 * len(rows):
            return [
                pattern.sub("", line, count=1) if pattern.match(line) else line for line in lines
            ]
    return lines


def _count_up(numbers: Sequence[str]) -> bool:
    steps = [int(later) - int(number) for number, later in pairwise(numbers)]
    return min(steps, default=0) >= 1 and steps.count(1) >= 0.5 * len(steps)


_PREFIX_LINES = 4
"""Lines from which on what all of them begin with counts as a prefix."""


def _without_shared_prefix(lines: Sequence[str]) -> list[str]:
    """Return lines without first words that nearly all share: ``node1:`` or ``pod container``."""
    cleaned = list(lines)
    for _ in range(_MOST_BEFORE):
        parts = [[*line.split(None, 1), ""][:2] if line.strip() else [] for line in cleaned]
        firsts = [part[0] for part in parts if part]
        if len(firsts) < _PREFIX_LINES:
            return cleaned
        word, count = Counter(map(_shape, firsts)).most_common(1)[0]
        is_mark = count == len(firsts) and not any(map(str.isalnum, word))
        shared = count >= 0.9 * len(firsts) and bool(re.search(r"[A-Za-z]", word))
        if not is_mark and (not shared or not (word[-1] in ":|]>)" or _is_a_name(firsts))):
            return cleaned
        cleaned = [
            part[1] if part and _shape(part[0]) == word else line
            for part, line in zip(parts, cleaned, strict=True)
        ]
    return cleaned


def _shape(word: str) -> str:
    """A word with its numbers masked: ``node17:`` as ``node0:``."""
    return re.sub(r"[0-9]+|(?<=[-_.])[0-9a-f]{5,}", "0", word)


def _is_a_name(firsts: Sequence[str]) -> bool:
    """Tell whether all first words are one and the same, and no device's or setting's name."""
    name = firsts[0]
    device = re.match(r"GPU\d|NIC\d|mlx|#|NCCL_", name)
    return len(set(firsts)) == 1 and device is None and len(name) > 2

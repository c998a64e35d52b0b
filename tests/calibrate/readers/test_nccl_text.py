"""Tables of nccl-tests and rccl-tests in the spellings that occur."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.calibrate.readers import read_files
from perfmodel.calibrate.readers.nccl_json import read_nccl_json, read_rccl_json
from perfmodel.calibrate.readers.nccl_rows import ops_allowed, ranks_of_factor, ranks_of_parts
from perfmodel.calibrate.readers.nccl_text import read_nccl_log
from perfmodel.calibrate.readers.sweep_records import Printed, version_text
from perfmodel.errors import InputError
from perfmodel.files.pasted_text import clean_characters, clean_lines

NEW = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
OLD = "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"
UNITS = "#   (B)  (elements)     (us)  (GB/s)  (GB/s)         (us)  (GB/s)  (GB/s)\n"


def read_nccl_text(text, file, **more):
    return read_nccl_log(clean_lines(clean_characters(text)), file, **more)


def ranks(count, hosts=1, processes=None, group=False, model="NVIDIA H100 80GB HBM3"):
    each = count // hosts
    grouped = "Group  0 " if group else ""
    return "# Using devices\n" + "".join(
        f"#  Rank {r:2d} {grouped}Pid {100 + (r if processes is None else r % processes):6d} on "
        f"host{r // each} device {r % each:2d} [0x{r:02x}] {model}\n"
        for r in range(count)
    )


def row(nbytes, time_us, factor, redop="sum", root="-1", wrong="0", places=2):
    alg = nbytes / time_us / 1e3
    cells = f"  {time_us:7.2f}  {alg:6.2f}  {alg * factor:6.2f}    {wrong}"
    return f"  {nbytes}  {nbytes // 4}     float  {redop}  {root}{cells * places}\n"


EIGHT = 2 * 7 / 8
BODY = row(1 << 20, 74.78, EIGHT) + row(1 << 30, 8159.5, EIGHT)


def only(text, **more):
    out, in_place = read_nccl_text(text, more.pop("file", "run.log"), **more)
    assert not out.in_place
    assert in_place.in_place
    return out


def test_a_plain_log_says_everything_but_what_it_was():
    sweep = only(ranks(8) + NEW + UNITS + BODY + "# Out of bounds values : 0 OK\n")
    assert (sweep.op, sweep.ranks, sweep.nodes) == ("all_reduce", 8, 1)
    assert sweep.dtype == "float"
    assert sweep.devices == ("NVIDIA H100 80GB HBM3",)
    assert sweep.one_process is False
    assert [(r.nbytes, r.time_s) for r in sweep.rows] == [
        (1 << 20, pytest.approx(74.78e-6)),
        (1 << 30, pytest.approx(8159.5e-6)),
    ]


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "2024-05-06T07:08:09.123Z ",
        "0: ",
        "worker-0 | ",
        "[2024-05-06 07:08:09] ",
        "\x1b[36m[1,0]<stdout>:\x1b[0m ",
    ],
)
def test_what_launchers_put_before_lines_is_passed_over(prefix):
    text = ranks(16, hosts=2, group=True) + NEW + UNITS + row(1 << 30, 5000, 2 * 15 / 16)
    plain = only(text)
    other = only("".join(prefix + line + "\n" for line in text.splitlines()))
    assert other.rows == plain.rows
    assert (other.ranks, other.nodes) == (16, 2)


def test_tables_without_a_root_with_error_for_wrong_and_nothing_checked():
    body = "  1048576  262144  float  sum  74.78  14.02  24.54  N/A  76.17  13.77  24.09  N/A\n"
    sweep = only(ranks(8, processes=1) + OLD + UNITS + body, op="all_reduce")
    assert [r.time_s for r in sweep.rows] == [pytest.approx(74.78e-6)]
    assert sweep.one_process is True


def test_rows_of_size_zero_and_stray_lines_are_passed_over():
    stray = "host:12:12 [0] NCCL INFO Launch mode Parallel\n"
    zero = "       0       0   float     sum   -1  35.20  0.00  0.00  N/A  34.05  0.00  0.00  N/A\n"
    sweep = only(ranks(8) + NEW + UNITS + stray + zero + BODY)
    assert [r.nbytes for r in sweep.rows] == [1 << 20, 1 << 30]


def test_a_row_that_other_output_cut_in_two_is_put_together():
    cut = (
        "  1048576  262144  float  sum  -1host0:7:9 [0] NCCL INFO comm 0x1 rank 0\n"
        "     74.78  14.02  24.54    0  76.17  13.77  24.09    0\n"
    )
    sweep = only(ranks(8) + NEW + UNITS + cut + row(1 << 30, 8159.5, EIGHT), op="all_reduce")
    assert [r.time_s for r in sweep.rows] == [pytest.approx(74.78e-6), pytest.approx(8159.5e-6)]


def test_several_tables_in_one_file_each_have_their_collective_and_ranks():
    first = "# Collective test starting: all_reduce_perf\n" + ranks(8) + NEW + UNITS + BODY
    second = "mpirun -np 4 ./reduce_scatter_perf -g 1\n" + ranks(4) + NEW + row(1 << 30, 4000, 0.75)
    found = [s for s in read_nccl_text(first + second, "all.log") if not s.in_place]
    assert [(s.op, s.ranks, len(s.rows)) for s in found] == [
        ("all_reduce", 8, 2),
        ("reduce_scatter", 4, 1),
    ]


def test_statistics_per_iteration_between_the_columns_do_not_matter():
    cells = "time algbw busbw #wrong"
    head = f"# size count type redop root {cells} min max p99 cv% {cells}\n"
    body = "1048576 262144 float sum -1 74.78 14.02 24.54 0 70 80 79 2.1 76.17 13.77 24.09 0\n"
    out, in_place = read_nccl_text(ranks(8) + head + body, "x.log")
    assert out.rows[0].time_s == pytest.approx(74.78e-6)
    assert in_place.rows[0].time_s == pytest.approx(76.17e-6)


@pytest.mark.parametrize(
    ("redop", "root", "factor", "op"),
    [
        ("none", "-1", 7 / 8, "all_gather"),
        ("sum", "-1", 7 / 8, "reduce_scatter"),
        ("none", "0", 1.0, "broadcast"),
        ("sum", "0", 1.0, "reduce"),
    ],
)
def test_the_collective_comes_from_a_flag_or_a_name_and_must_agree(redop, root, factor, op):
    text = ranks(8) + NEW + row(1 << 30, 8000, factor, redop, root)
    assert only(text, op=op).op == op
    assert only(text, file=f"logs/{op}-8.txt").op == op
    with pytest.raises(InputError, match="whose busbw would be another multiple"):
        read_nccl_text(text, "x.log", op="all_reduce")


def test_a_table_that_two_collectives_would_print_asks_which():
    text = ranks(8) + NEW + row(1 << 30, 8000, 7 / 8, "none", "-1")
    with pytest.raises(InputError, match=r"one of 'all_gather', 'all_to_all'.*--op"):
        read_nccl_text(text, "x.log")


def test_ranks_that_are_not_listed_come_from_the_bandwidths_or_are_asked_for():
    assert only("all_reduce_perf\n" + NEW + row(1 << 30, 8000, EIGHT)).ranks == 8
    assert only("all_reduce_perf\n" + NEW + row(1 << 30, 8000, EIGHT)).nodes is None
    with pytest.raises(InputError, match="ranks: found a table without its list of devices"):
        read_nccl_text("broadcast_perf\n" + NEW + row(1 << 30, 8000, 1.0, "none", "0"), "x.log")
    few = [(Printed(10.0, 0.005), Printed(2 * 127 / 128 * 10, 0.005))]
    assert ranks_of_factor("all_reduce", few) is None  # 128, or 120?
    many = [(Printed(1000.0, 0.005), Printed(2 * 127 / 128 * 1000, 0.005))]
    assert ranks_of_factor("all_reduce", many) == 128


@pytest.mark.parametrize("op", ["broadcast", "reduce", "send_recv"])
def test_collectives_of_factor_one_tell_nothing_of_their_ranks(op):
    """Bus bandwidth is algorithm bandwidth, however many take part (nccl-tests)."""
    assert ranks_of_factor(op, [(Printed(1000.0, 0.005), Printed(1000.0, 0.005))]) is None


def test_sizes_of_gathers_are_as_many_parts_as_ranks():
    """`count` is one rank's, `size` that of all (nccl-tests, ``AllGatherGetCollByteCount``)."""
    assert ranks_of_parts("all_gather", [4, 4]) == 4
    assert ranks_of_parts("all_gather", [4, 8]) is None
    assert ranks_of_parts("all_reduce", [4]) is None


@pytest.mark.parametrize("off", [-0.002, -0.0003, 0.0, 0.0003, 0.002])
def test_a_factor_may_be_off_by_half_a_thousandth(off):
    """Of eight ranks 2 * 7 / 8; what was computed of rounded times may miss it a little."""
    points = [(Printed(1000.0, 0.0), Printed(1750.0 * (1 + off), 0.0))]
    assert ops_allowed(points, 8) == ({"all_reduce"} if abs(off) < 0.0005 else set())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ranks(1) + NEW + row(1 << 20, 9, 0.0), "built without MPI"),
        (ranks(8) + NEW + UNITS, "a head without rows"),
        (ranks(8) + NEW + BODY[:-70] + "\n", "the table is cut off"),
        (ranks(8) + NEW + row(1 << 30, 8159.5, 0.3), "that no collective has among 8 ranks"),
        (
            ranks(8, group=True).replace("Group  0 Pid    107", "Group  1 Pid    107") + NEW + BODY,
            "2 groups of ranks",
        ),
    ],
)
def test_tables_that_cannot_be_used_say_why(text, words):
    with pytest.raises(InputError, match=words):
        read_nccl_text(text, "x.log", op="all_reduce")


def test_versions_and_settings_are_kept_but_no_other_variable():
    said = (
        "mpirun -x NCCL_PROTO=simple -x AWS_SECRET_ACCESS_KEY=hush all_reduce_perf\n"
        "h:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n"
        "h:1:1 [0] NCCL INFO NCCL version 2.18.3+cuda12.2\n"
    )
    sweep = only(said + ranks(8) + NEW + BODY)
    assert sweep.env == {"NCCL_PROTO": "simple", "NCCL_ALGO": "Ring"}
    assert sweep.version == "2.18.3"
    assert "hush" not in repr(sweep)
    ended = "h:1:1 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 8388608.\n"
    assert only(ended + ranks(8) + NEW + BODY).env == {"NCCL_BUFFSIZE": "8388608"}
    header = "# nccl-tests version 2.17.1 nccl-headers=22605 nccl-library=22605\n"
    assert only(header + ranks(8) + NEW + BODY).version == "2.26.5"
    assert version_text(2408) == "2.4.8"  # NCCL 2.4.8 is 2408 in nccl.h


# ---------------------------------------------------------------- JSON


def nccl_document(**changed):
    devices = [
        {
            "rank": r,
            "group": 0,
            "pid": r,
            "hostname": f"h{r // 2}",
            "device": r % 2,
            "device_hex": "0x0",
            "device_info": "NVIDIA A100-SXM4-80GB",
        }
        for r in range(4)
    ]
    cell = {"alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 0.0}
    results = [
        {
            "size": n,
            "count": n // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": {"time": t, **cell},
            "in_place": {"cpu_time": t + 1, **cell},
        }
        for n, t in ((0, 5.0), (1 << 20, 100.0))
    ]
    known = {
        "version": 3,
        "start_time": "2026-01-01 00:00:00",
        "nccl_version": 22809,
        "args": ["./build/all_gather_perf", "-b", "8"],
        "results": results,
        "env": ["NCCL_ALGO=Ring", "TOKEN=hush", "NCCL_DEBUG=INFO"],
        "config": {"devices": devices},
    }
    return known | changed


def test_json_of_nccl_tests():
    out, in_place = read_nccl_json(nccl_document(), "out.json")
    assert (out.op, out.ranks, out.nodes) == ("all_gather", 4, 2)
    assert [(r.nbytes, r.time_s) for r in out.rows] == [(1 << 20, pytest.approx(1e-4))]
    assert in_place.rows[0].time_s == pytest.approx(1.01e-4)
    assert out.version == "2.28.9"
    assert out.started == "2026-01-01 00:00:00"
    assert out.env == {"NCCL_ALGO": "Ring"}
    assert "hush" not in repr(out)


def test_json_faults_come_all_at_once():
    with pytest.raises(InputError) as caught:
        read_nccl_json(nccl_document(args=[], results=[], config={"devices": []}), "o.json")
    assert {fault.field for fault in caught.value.faults} == {"args", "config.devices", "results"}
    with pytest.raises(InputError, match="no row with a size and a time"):
        read_nccl_json(nccl_document(results=[{"size": 1, "type": "float"}]), "x.json")
    with pytest.raises(InputError, match="the fields that the tests write"):
        read_nccl_json(
            nccl_document(results=[{"type": "float", "in_place": {"time": 1}}]), "x.json"
        )


def test_json_of_rccl_tests_in_both_shapes(tmp_path):
    record = {
        "#wrong": "0",
        "algBw": 0.05,
        "busBw": 0.08,
        "gpus": 4,
        "name": "AllReduce",
        "redop": "sum",
        "type": "float",
    }
    records = [
        record | {"size": n, "time": t, "inPlace": p}
        for n, t, p in ((1024, 19.2, 0), (1024, 19.9, 1), (2048, 19.4, 0))
    ]
    out, in_place = read_rccl_json(records, "x.json")
    assert (out.op, out.ranks, len(out.rows), len(in_place.rows)) == ("all_reduce", 4, 2, 1)
    for text in (json.dumps(records), "\n".join(map(json.dumps, records))):
        path = tmp_path / "rccl.json"
        path.write_text(text)
        (found,) = read_files([path])
        assert [len(s.rows) for s in found.sweeps] == [2, 1]
        assert found.sweeps[0].tool == "rccl-tests"


# ---------------------------------------------------------------- whatever is given

WHOLE = "# Collective test starting: all_reduce_perf\n" + ranks(8, group=True) + NEW + UNITS + BODY


@pytest.mark.slow
@given(cut=st.integers(0, len(WHOLE)), noise=st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_a_log_cut_anywhere_is_read_or_refused(cut, noise):
    try:
        found = read_nccl_text(WHOLE[:cut] + noise + WHOLE[cut:][::2], "x.log")
    except InputError:
        return
    assert all(row.time_s > 0 and row.nbytes > 0 for sweep in found for row in sweep.rows)


@pytest.mark.slow
@given(
    field=st.sampled_from(["args", "env", "config", "results", "nccl_version"]),
    value=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=6,
    ),
)
@settings(max_examples=60, deadline=None)
def test_json_with_anything_in_it_is_read_or_refused(field, value):
    try:
        read_nccl_json(nccl_document(**{field: value}), "x.json")
        read_rccl_json([{"size": 8, "time": 1.0, "inPlace": 0, "gpus": 2, field: value}], "x.json")
    except InputError:
        pass


@pytest.mark.parametrize(
    ("size", "time", "message"),
    [
        (8 * 10**20, "12.05", "size: found 800000000000000000000 B; allowed: at most 1,125"),
        (8, "12e20", "time: found 1.2e+21 us for 8 B; allowed: from 1e-06 to 1e+15 us"),
        (8, "1e999", "time: found inf us for 8 B; allowed: from"),
        (8, "1e-9", "time: found 1e-09 us for 8 B; allowed: from"),
    ],
)
def test_sizes_and_times_that_nothing_has_are_refused(size, time, message):
    """A damaged digit makes them; they left the range of NumPy's integers, or of a profile."""
    head = "# size count type redop root time algbw busbw #wrong\n"
    ranks = "".join(f"# Rank {r} Pid 1 on h0 device {r} [0x0{r}] NVIDIA A100\n" for r in (0, 1))
    row = f"{size} 2 float sum -1 {time} 0.00 0.00 0\n"
    with pytest.raises(InputError, match=re.escape(message)):
        read_nccl_text(f"{ranks}{head}{row}", "all_reduce.log")


def test_a_head_whose_columns_do_not_fit_is_no_head():
    """Cells are found by the place of a column: a word that runs into "time" gave an IndexError."""
    rows = "8 2 float sum -1 12.05 0.00 0.00 0 11.95 0.00 0.00 0\n"
    ranks = "".join(f"# Rank {r} Pid 1 on h0 device {r} [0x0{r}] NVIDIA A100\n" for r in (0, 1))
    torn = "# size count type redop root ti#me algbw busbw #wrong time algbw busbw #wrong\n"
    with pytest.raises(InputError, match="no table of nccl-tests, but a head cut or wrapped"):
        read_nccl_text(f"{ranks}{torn}{rows}", "all_reduce.log")
    without = "# size count type redop root time busbw #wrong\n"
    with pytest.raises(InputError, match="no table of nccl-tests"):
        read_nccl_text(f"{ranks}{without}{rows}", "all_reduce.log")


# ---------------------------------------------------------------- as people paste them


def test_tags_of_mpirun_stand_inside_of_rows_as_well():
    tagged = row(1 << 30, 8159.5, EIGHT).replace("-1  ", "-1[1,0]<stdout>:  ").strip()
    lines = [*(ranks(8) + NEW + UNITS).splitlines(), tagged]
    sweep = only("".join(f"[1,0]<stdout>:{line}\n" for line in lines), op="all_reduce")
    assert [r.time_s for r in sweep.rows] == [pytest.approx(8159.5e-6)]


def test_sends_print_a_sum_and_are_named():
    text = "# Collective test starting: sendrecv_perf\n" + ranks(2) + NEW + row(1 << 30, 9e4, 1.0)
    assert only(text).op == "send_recv"
    assert only(text.replace("sendrecv_perf", "all_reduce_perf_mpi")).op == "all_reduce"


def test_a_list_of_first_and_last_ranks_is_completed_by_its_pattern():
    whole = ranks(16, hosts=2).splitlines(keepends=True)
    few = "".join([whole[0], whole[1], whole[8], whole[9], whole[16]])
    sweep = only(few + NEW + row(1 << 30, 8159.5, 2 * 15 / 16), op="all_reduce")
    assert (sweep.ranks, sweep.nodes) == (16, 2)
    assert "4 of 16 ranks are listed" in sweep.notes[0]
    torn = few.replace("device  7", "device  6", 1)  # rank 7 is no longer the last of its host
    with pytest.raises(InputError, match="4 of the ranks 0 to 15"):
        only(torn + NEW + row(1 << 30, 8159.5, 2 * 15 / 16), op="all_reduce")
    with pytest.raises(InputError, match="10 in the list"):
        read_nccl_text("".join([*whole[:3], whole[10]]) + NEW + BODY, "x.log", op="all_reduce")
    with pytest.raises(InputError, match=r"7 in the list.*is the list cut off"):
        read_nccl_text("".join(whole[:8]) + NEW + BODY, "x.log", op="all_reduce")


def test_rows_without_their_head_and_heads_of_nccl_1():
    sweep = only(BODY)
    assert (sweep.op, sweep.ranks, sweep.nodes) == ("all_reduce", 8, None)
    assert "its head is missing" in sweep.notes[0]
    with pytest.raises(InputError, match="of several tables"):
        read_nccl_text(BODY + row(1 << 30, 9159.5, EIGHT), "x.log")
    old = "#  bytes  N  type  op  time  algbw  busbw  res  time  algbw  busbw  res\n"
    body = (
        "#  33554432  8388608  float  sum  3.247  10.33  18.08  4e-07  3.2  10.49  18.36  4e-07\n"
    )
    assert only(old + body).rows[0].time_s == pytest.approx(3.247e-3), "milliseconds"


def test_rows_that_end_behind_the_times_out_of_place():
    body = "  1048576  262144  float  sum  74.78  14.02  24.54  N/A\n"
    (sweep,) = read_nccl_text(ranks(8) + OLD + UNITS + body, "all_reduce.log")
    assert [r.time_s for r in sweep.rows] == [pytest.approx(74.78e-6)]
    assert "none in place" in sweep.notes[0]


@pytest.mark.parametrize("width", [72, 80, 100])
def test_lines_that_a_terminal_wrapped_are_put_together(width):
    head = (
        "#       size         count      type   redop    root     time   algbw   busbw #wrong"
        "     time   algbw   busbw #wrong\n"
    )
    cells = "   740.20  1450.60  2538.55      0"
    body = f"  1073741824     268435456     float     sum      -1{cells}{cells}\n"
    text = ranks(8) + head + body + "# Out of bounds values : 0 OK\n"
    wrapped = "\n".join(
        line[at : at + width] for line in text.splitlines() for at in range(0, len(line), width)
    )
    out, in_place = read_nccl_text(wrapped, "x.log", op="all_reduce")
    assert out.rows == in_place.rows
    assert out.rows[0].time_s == pytest.approx(740.2e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ranks(8) + NEW + BODY.replace("8159.50", "8195.50"), "beside an algbw of 131.59"),
        (ranks(8) + NEW + BODY.replace("6  262144", "6  262143"), "of 262,143 elements"),
        (ranks(8) + NEW + BODY.replace("230.29", "203.29"), "another multiple of algbw"),
        (ranks(8) + NEW + row(8, 5, 0) + row(1 << 30, 9, 0.0), "built without MPI"),
        (ranks(1) * 3 + NEW + row(8, 5, 0), "ranks: found 1"),
        (ranks(1) + NEW + BODY, "1 in the list"),
        (ranks(1) + ranks(1).replace("Pid    100", "Pid 7") + NEW, "2 lists of one rank each"),
        (NEW.strip() + " | " + NEW + BODY, "tables side by side"),
        (ranks(8) + NEW.replace("time", "cputime") + BODY, "took to launch"),
        (NEW + "  64  16  float  sum  -1  XXXX  XX.X  XX.X  0  XXXX  XX.X  XX.X  0\n", "'XXXX'"),
        (ranks(8) + NEW + "h:1:2 [0] NCCL WARN No transport found\n", "NCCL WARN No transport"),
        (ranks(8) + NEW + BODY + row(1 << 30, 99159.5, EIGHT), "the head of a second missing"),
        (ranks(8).replace("Rank  7", "Rank  6") + NEW + BODY, "rank 6 twice"),
        (ranks(8) + NEW + BODY.replace("1048576", "1O48576"), "begins with '1O48576 262144'"),
        (ranks(8) + NEW + BODY.replace("262144", "262 144"), "of 144 elements"),
        (ranks(8) + NEW + BODY.replace("8159.50", "8l59.50"), "'8l59.50'"),
        (ranks(8) + NEW + BODY.replace("8159.50", "8.159.50"), "'8.159.50'"),
    ],
)
def test_damaged_tables_are_refused_with_the_reason(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read_nccl_text(text, "all_reduce.log")


@pytest.mark.parametrize("mark", [",", ".", "'", "_"])
@pytest.mark.parametrize("comma", [False, True])
def test_numbers_of_other_countries_are_read(mark, comma):
    """Marks between thousands of whole numbers, and a comma before decimals."""
    grouped = re.sub(
        r"\b\d{5,}\b(?![.])", lambda found: f"{int(found[0]):,}".replace(",", mark), BODY
    )
    text = re.sub(r"(?<= )(\d+)\.(\d\d)(?= )", r"\1,\2", grouped) if comma else grouped
    assert mark in text
    plain, foreign = (only(ranks(8) + NEW + each, file="all_reduce.log") for each in (BODY, text))
    assert foreign.rows == plain.rows


def test_ranks_that_share_a_gpu_are_noted():
    shared = ranks(2).replace("[0x01]", "[0x00]").replace("device  1", "device  0")
    sweep = only(shared + NEW + row(1 << 30, 8159.5, 1.0), op="all_reduce")
    assert "share one GPU" in sweep.notes[0]


@given(at=st.integers(0, 10_000), digit=st.sampled_from("0123456789"))
@settings(max_examples=60, deadline=None)
def test_a_wrong_digit_changes_no_number_in_silence(at, digit):
    """Numbers of a row stand there twice; what no other number confirms is off by rounding."""
    body = row(1 << 28, 2040.61, EIGHT) + row(1 << 30, 8159.52, EIGHT)
    places = [match.start() for match in re.finditer(r"\d", body)]
    place = places[at % len(places)]
    whole = {s.in_place: s.rows for s in read_nccl_text(ranks(8) + NEW + body, "all_reduce.log")}
    torn = body[:place] + digit + body[place + 1 :]
    try:
        sweeps = read_nccl_text(ranks(8) + NEW + torn, "all_reduce.log")
    except InputError:
        return
    for sweep in sweeps:
        for found, known in zip(sweep.rows, whole[sweep.in_place], strict=True):
            assert found.nbytes == known.nbytes
            assert found.time_s == pytest.approx(known.time_s, rel=1e-3)

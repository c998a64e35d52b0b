"""Reading folders of recorded sweeps: what is tolerated, what is refused, all faults at once."""

import csv

import pytest

from perfmodel.errors import InputError
from perfmodel.validate.read import operation, read_sweeps
from perfmodel.validate.run import shipped_folder

META = {
    "sweep_id": "one",
    "collective": "AllReduce",
    "gpu": "A100-SXM4-80GB",
    "nodes": "1",
    "gpus_per_node": "8",
    "nranks": "8",
    "intra_node": "NVLink3 NVSwitch",
    "inter_node": "none",
    "trust": "4",
}


def folder(tmp_path, rows="size_bytes,time_us\n1024,30\n1048576,100\n", **cells):
    row = META | cells
    with (tmp_path / "META.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(row))
        writer.writeheader()
        writer.writerow(row)
    if rows is not None:
        (tmp_path / f"{row['sweep_id']}.csv").write_text(rows)
    return tmp_path


def faults(path):
    with pytest.raises(InputError) as caught:
        read_sweeps(path)
    return str(caught.value)


def test_a_sweep_as_it_was_written(tmp_path):
    (sweep,) = read_sweeps(folder(tmp_path))
    assert (sweep.collective, sweep.nodes, sweep.gpus_per_node, sweep.nranks) == (
        "all_reduce",
        1,
        8,
        8,
    )
    assert [row.nbytes for row in sweep.rows] == [1024, 1048576]
    assert [row.time_s for row in sweep.rows] == pytest.approx([30e-6, 100e-6])
    assert sweep.nic_count is None
    assert sweep.topology == ""


def test_the_subfolder_is_found_too(tmp_path):
    (tmp_path / "nccl_sweeps").mkdir()
    folder(tmp_path / "nccl_sweeps")
    assert len(read_sweeps(tmp_path)) == 1


def test_a_few_columns_are_enough(tmp_path):
    (tmp_path / "META.csv").write_text("sweep_id,collective,gpu,nranks\nx,all_reduce,T4,4\n")
    (tmp_path / "x.csv").write_text("size_bytes,algbw_GBps\n1000000,2.0\n")
    (sweep,) = read_sweeps(tmp_path)
    assert sweep.rows[0].time_s == pytest.approx(500e-6)  # 1 MB at 2 GB/s
    assert (sweep.nodes, sweep.gpus_per_node, sweep.trust) == (1, 4, 3)
    assert any("derived from the printed bandwidth" in note for note in sweep.notes)


def test_rows_of_zero_bytes_are_left_out_and_said(tmp_path):
    (sweep,) = read_sweeps(folder(tmp_path, "size_bytes,time_us\n0,12\n8,13\n"))
    assert [row.nbytes for row in sweep.rows] == [8]
    assert sweep.notes == ("rows of zero bytes left out",)


def test_fewer_ranks_than_gpus_are_said(tmp_path):
    (whole,) = read_sweeps(folder(tmp_path, nodes="2", nranks="16"))
    assert whole.notes == ()
    (part,) = read_sweeps(folder(tmp_path, nodes="2", nranks="8"))
    assert part.gpus_per_node == 4
    assert part.notes == ("8 ranks on 2 nodes, though 8 GPUs a node are stated",)


def test_another_count_of_ranks_in_the_times_is_said(tmp_path):
    rows = "size_bytes,time_us,nranks\n1024,30,16\n"
    (sweep,) = read_sweeps(folder(tmp_path, rows))
    assert "16 ranks, the table says 8" in sweep.notes[0]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("size_bytes,time_us\n1024,-3\n", "'-3'; allowed: a number above zero"),
        ("size_bytes,time_us\n1024,0\n", "'0'; allowed: a number above zero"),
        ("size_bytes,time_us\n1024,fast\n", "'fast'; allowed: a number"),
        ("size_bytes,time_us\nmany,3\n", "'many'; allowed: a number"),
        ("size_bytes,time_us\n10.5,3\n", "'10.5'; allowed: a whole number"),
        ("size_bytes,time_us\n1024\n", "too few cells"),
        ("size_bytes,time_us\n1024,\n", "time_us: found nothing"),
        ("bytes_of,time_us\n1024,3\n", "size_bytes: found no such column"),
        ("size_bytes,time_us\n", "without a single time"),
        # 1 MB in 100 us is 10 GB/s
        ("size_bytes,time_us,algbw_GBps\n1000000,0.1,10\n", "factor of 1e+03 (milliseconds?)"),
        ("size_bytes,time_us,algbw_GBps\n1000000,100000,10\n", "factor of 0.001 (nanoseconds?)"),
    ],
)
def test_bad_times_are_refused_with_the_line(tmp_path, rows, said):
    text = faults(folder(tmp_path, rows))
    assert said in text
    assert "one.csv:" in text or "META.csv:2" in text


def test_all_faults_come_at_once(tmp_path):
    rows = "size_bytes,time_us\n1024,-3\n2048,-4\nx,5\n"
    text = faults(folder(tmp_path, rows, nic_gbps="quick", trust="good"))
    assert len(text.splitlines()) == 5
    assert "one.csv:2" in text
    assert "one.csv:3" in text
    assert "META.csv:2: nic_gbps" in text


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"nranks": "9", "nodes": "2", "gpus_per_node": ""}, "as many ranks on every node"),
        ({"nranks": "", "nodes": "", "gpus_per_node": ""}, "nranks, or nodes and gpus_per_node"),
        ({"sweep_id": "../one"}, "without '/'"),
        ({"trust": "9"}, "trust: found 9; allowed: 1 (worst) to 5 (best)"),
    ],
)
def test_impossible_rows_of_the_table(tmp_path, cells, said):
    assert said in faults(
        folder(tmp_path, rows=None if "sweep_id" in cells else "size_bytes,time_us\n8,9\n", **cells)
    )


def test_no_table_and_no_times(tmp_path):
    assert "no META.csv" in faults(tmp_path)
    assert "no such folder" in faults(tmp_path / "none")
    assert "no one.csv" in faults(folder(tmp_path, rows=None))


def test_missing_columns_of_the_table_are_named(tmp_path):
    (tmp_path / "META.csv").write_text("sweep_id,collective\nx,all_reduce\n")
    assert "gpu: found no such column" in faults(tmp_path)


def test_bytes_that_are_no_text(tmp_path):
    folder(tmp_path)
    (tmp_path / "one.csv").write_bytes(b"\xff\xfe\x00size")
    assert "UTF-8 text" in faults(tmp_path)


def test_names_of_collectives():
    assert operation("All Reduce") == operation("all_reduce_perf") == "all_reduce"
    assert operation("hypercube") == "hypercube"


def test_the_shipped_records_are_readable_and_named_once():
    sweeps = read_sweeps(shipped_folder())
    assert len({sweep.id for sweep in sweeps}) == len(sweeps) == 155
    assert sum(len(sweep.rows) for sweep in sweeps) == 1729 + 2170
    assert all(sweep.source for sweep in sweeps)
    # github.com/NVIDIA/dgxc-benchmarking nccl/README.md prints 8 GiB at 480 GB/s of busbw
    (dgx,) = (sweep for sweep in sweeps if sweep.id == "nv_dgxh100_1n_allreduce")
    last = dgx.rows[-1]
    assert last.nbytes / last.time_s * 1.75 == pytest.approx(480e9, rel=0.01)

"""Status of ranks, read by another process."""

from perfmodel.measure import status as at


def test_the_status_is_told_in_words():
    memory = [0] * (2 * at.FIELDS)
    status = at.Status(memory, 1)
    assert str(at.Status(memory, 1)) == "starting Python and torch"
    status.stage(at.TIME)
    status.item(4096, 0, 2)
    status.step(at.POSTED, 4)
    assert str(status) == (
        "timing, schedule of 4 KiB, repeat 3, waiting for sends and receives of round 5"
    )
    status.item(1 << 20, 1, 0)
    status.step(at.LIBRARY)
    assert str(status) == "timing, library of 1 MiB, repeat 1, inside the library's collective"
    assert [at.Status(memory, rank).fields[0] for rank in range(2)] == [0, 4]


def test_progress_is_read_from_rank_0():
    memory = [0] * (2 * at.FIELDS)
    at.Status(memory, 0).progress(3, 10)
    assert at.Status(memory, 0).fields[-2:] == [3, 10]

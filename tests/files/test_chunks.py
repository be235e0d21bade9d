"""Chunks: full, or what there is when the input pauses."""

import queue
import time

import pytest

from transformer.files.chunks import chunks


def test_chunks_are_full_where_nobody_waits():
    assert [*chunks(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [*chunks([], 3)] == []


def test_what_comes_without_a_pause_is_together():
    assert [*chunks(iter(range(7)), 3, pause=5)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [*chunks([], 3, pause=5)] == []


def test_a_pause_ends_a_chunk():
    typed: queue.Queue[int | None] = queue.Queue()
    found = chunks(iter(typed.get, None), 100, pause=0.02)
    for number in (1, 2):
        typed.put(number)
    assert next(found) == [1, 2]  # nothing else is to come before this is answered
    typed.put(3)
    start = time.monotonic()
    assert next(found) == [3] and time.monotonic() - start < 2
    typed.put(4)
    typed.put(None)
    assert [*found] == [[4]]


@pytest.mark.parametrize("pause", [None, 5])
def test_an_error_comes_after_what_was_read_before(pause):
    def read():
        yield 1
        yield 2
        raise OSError("gone")

    found = chunks(read(), 2, pause)
    assert next(found) == [1, 2]
    with pytest.raises(OSError, match="gone"):
        next(found)
    if pause:  # what is no full list is given out too
        found = chunks(read(), 9, pause)
        assert next(found) == [1, 2]
        with pytest.raises(OSError, match="gone"):
            next(found)

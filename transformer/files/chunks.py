"""Items in chunks: a given number, or those available when the input pauses."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")

PAUSE = 0.005  # seconds without anything new: somebody may be waiting for an answer
_END = object()


def chunks(
    items: Iterable[Item], most: int, pause: float | None = None
) -> Iterator[list[Item]]:
    """Yield items in lists, none of them empty.

    Args:
      items: the next one may take a while.
      most: items of a list.
      pause: seconds; a list ends as soon as nothing has come for this long. None: a
        list ends when it is full, or with the items.

    Raises:
      Exception: what the items raise, after all items before it.
    """
    if pause is None:
        items = iter(items)
        while chunk := [*itertools.islice(items, most)]:
            yield chunk
        return
    waiting: queue.Queue[Any] = queue.Queue(most)
    # A read cannot be interrupted: the thread may outlive whoever asked for it.
    threading.Thread(target=_put, args=(items, waiting), daemon=True).start()
    while (first := waiting.get()) is not _END:
        chunk = [_item(first)]
        try:
            while len(chunk) < most:
                following = waiting.get(timeout=pause)
                if following is _END or following[1] is not None:
                    yield chunk
                    if following is _END:
                        return
                    chunk = []
                chunk.append(_item(following))
        except queue.Empty:
            pass
        yield chunk


def _put(items: Iterable[Any], waiting: queue.Queue[Any]) -> None:
    """Put pairs (item, None), perhaps one (None, error), then the end."""
    try:
        for item in items:
            waiting.put((item, None))
    except BaseException as error:
        waiting.put((None, error))
    waiting.put(_END)


def _item(pair: tuple[Any, BaseException | None]) -> Any:
    item, error = pair
    if error is not None:
        raise error
    return item

"""One holder of a folder at a time."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from transformer.config import UserError

_NAME = "lock"


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Be the one process that writes in a folder.

    The operating system holds the lock (``flock``) and releases it when the process
    ends, however it ends: a killed process leaves a file that says who it was and
    blocks nobody. Over NFS, Linux makes it a byte-range lock on the server, which frees
    the locks of a host that is gone when its lease ends (NFSv4: 90 seconds).

    Args:
      folder: exists and can be written.

    Raises:
      UserError: if another process holds it, or the file system has no locks.
    """
    path = folder / _NAME
    # A link is not followed; nothing is emptied before the lock is held.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        number = os.open(path, flags, 0o666)
    except OSError as error:
        writable = os.access(folder, os.W_OK)
        remedy = "remove it" if writable else "make its folder writable"
        raise UserError(
            f"{path}: expected a writable file, got: {error.strerror}; {remedy}"
        ) from None
    with open(number, "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: expected a folder that no other process works in, but "
                f"{_holder(file)}; wait until it ends or choose another workdir"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            raise UserError(
                f"{folder}: expected a file system with locks, got: {error.strerror}; "
                "choose a workdir on another"
            ) from None
        _sign(file)
        yield


@contextlib.contextmanager
def marking(path: Path) -> Iterator[None]:
    """Hold a file that shows others that this process lives; then remove it.

    On a file system without locks it shows nothing.

    Raises:
      OSError: if it cannot be written.
    """
    with open(path, "w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_marked(path: Path) -> bool:
    """Return whether a live process holds a file by ``marking``."""
    try:
        with open(path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # it is not there, or there are no locks
        return False
    return False


def _sign(file: TextIO) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    who = {"host": socket.gethostname(), "process": os.getpid(), "since": now}
    file.truncate(0)
    json.dump(who, file)
    file.flush()


def _holder(file: TextIO) -> str:
    try:
        who = json.load(file)
        return f"process {who['process']} on {who['host']} does, since {who['since']}"
    except (ValueError, KeyError, TypeError):
        return "another does"  # it has just begun

"""The command line: runs one command, with one line for every user error.

Nothing heavy is imported here: a command imports what it runs when it runs, after the
devices have been chosen.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from absl import flags

import transformer
from transformer.allocator import keep_memory
from transformer.cli.commands import COMMANDS
from transformer.cli.parse import parse
from transformer.config import UserError
from transformer.run.signals import Terminated, terminate

_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # as in shells
_SAID = {_INTERRUPTED: "interrupted", _TERMINATED: "terminated"}
_PATIENCE = 10.0  # seconds that a signal may wait for Python

# What a user can do about errors of the operating system.
_REMEDIES = {
    errno.ENAMETOOLONG: "choose a shorter one",
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM), "change its permissions or choose another"
    ),
    # EFBIG: a limit on the size of files (ulimit -f).
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG),
        "make room or choose another folder",
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run a command.

    Args:
      arguments: without the name of the program.

    Returns:
      The exit code: 0, 1 if some runs of several failed, 2 for a user error, 130 if
      interrupted, 141 if the reader of the output went away, 143 if SIGTERM came.
    """
    try:
        if sys.stdout is None:
            raise UserError(
                "standard output: expected it open, found it closed; send it to a file "
                "or to /dev/null"
            )
        code = _dispatch(list(arguments))
        sys.stdout.flush()
        return code
    except (UserError, flags.Error) as error:
        return _complain(str(error), 2)
    except BrokenPipeError:
        return 141
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        return _complain(f"{error}; {_REMEDIES[error.errno]}", 2)
    except Terminated:
        return _complain(_SAID[_TERMINATED], _TERMINATED)
    except KeyboardInterrupt:
        return _complain(_SAID[_INTERRUPTED], _INTERRUPTED)


def run() -> None:
    """Run the command of ``sys.argv`` and exit: the console script."""
    # Importing and tracing create objects by the hundred thousand; collecting garbage
    # after every 700 would take a tenth of the startup.
    gc.set_threshold(100_000)
    _fill_descriptors()
    keep_memory()
    _listen()
    code = main(sys.argv[1:])
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # nothing reads what Python would flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    for name in ("transformer.parallel.hosts", "transformer.parallel.ahead"):
        if name in sys.modules:
            sys.modules[name].leave(code)
    # A program on a device cannot be stopped: do not wait for it.
    if code in _SAID:
        os._exit(code)
    sys.exit(code)


def _listen() -> None:
    """Let SIGTERM and Ctrl-C end the process, if need be without Python.

    A handler runs between two instructions of Python, and a whole search is one.
    ``run.signals.handled`` suspends this where there is something to save.
    """
    signal.signal(signal.SIGTERM, terminate)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_end_late, args=(reading,), daemon=True).start()


def _end_late(reading: int) -> None:
    while True:
        code = 128 + os.read(reading, 1)[0]
        if code in _SAID:
            time.sleep(_PATIENCE)
            os._exit(_complain(_SAID[code], code))


def _complain(text: str, code: int) -> int:
    line = " ".join(text.splitlines())
    with contextlib.suppress(OSError):
        print(f"transformer: error: {line}", file=sys.stderr)
    return code


def _fill_descriptors() -> None:
    """Keep files opened later from taking the place of a closed standard stream."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    if sys.stderr is None:  # print would take None as standard output
        sys.stderr = open(os.devnull, "w")


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(f"transformer {transformer.__version__}")
        return 0
    name = arguments.pop(0)
    if name not in COMMANDS:
        nearest = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else "see transformer --help"
        raise UserError(
            f"expected a command, one of {', '.join(COMMANDS)}; got {name}; {hint}"
        )
    if {"--help", "-h"} & set(arguments):
        print(_help(name))
        return 0
    return COMMANDS[name].run(parse(name, COMMANDS[name], arguments))


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {one.summary}" for name, one in COMMANDS.items()]
    return "\n".join(
        [
            "usage: transformer COMMAND --FLAG=VALUE ...",
            "",
            'The Transformer of "Attention Is All You Need".',
            "",
            *lines,
            "",
            "transformer COMMAND --help lists the flags of a command,",
            "transformer --version prints the version.",
        ]
    )


def _help(name: str) -> str:
    command = COMMANDS[name]
    usage = command.usage + "".join(f" --{flag}=..." for flag in command.required)
    lines = [f"usage: transformer {name}{usage}", "", command.summary, ""]
    for argument, one in command.positional.items():
        lines.append(f"  {argument.upper()}\n      {one.help}")
    for flag, one in command.flags().items():
        shown = one.default is not None and one.default is not False
        default = f" (default: {one.default})" if shown else ""
        choices = "|".join(one.choices)
        form = f"--{flag}" + (f"={choices}" if choices else "")
        lines.append(f"  {form}\n      {one.help}{default}")
    return "\n".join(lines)

"""Seconds from the start of a process to its first training step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.tools.bench.clock import spread


def measure_startup(config_arguments: Sequence[str], rounds: int) -> dict[str, Any]:
    """Start ``transformer train`` until its first step is done, prepared and cached."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            workdir = Path(folder) / str(number)
            command = [
                *(sys.executable, "-m", "transformer", "train"),
                *(*config_arguments, f"--workdir={workdir}"),
                f"--config.data.prepared={Path(folder) / 'corpus'}",
                "--config.train.log_every=1",
            ]
            seconds.append(_until_first_step(command))
    return spread(seconds[1:], "start to first step")


def _until_first_step(command: Sequence[str]) -> float:
    """Return the seconds until a process has logged its first step; stop it then.

    Raises:
      UserError: if the process ended with one, which it has already written.
    """
    start = time.perf_counter()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step "):
                seconds = time.perf_counter() - start
                process.send_signal(signal.SIGTERM)
                process.communicate()
                return seconds
    if (code := process.returncode) == 2:
        raise UserError(
            "--what=startup: expected a configuration that trains, got one that the "
            "line above refuses; fix it"
        )
    raise RuntimeError(f"no step was made, exit code {code}: {command}")

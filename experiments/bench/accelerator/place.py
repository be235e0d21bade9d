"""Where the pieces are measured, and how they run their commands."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from side_by_side import HERE, ROOT, our_environment

from accelerator.scale import Scale

LIMIT = 600  # seconds that a piece may take
_LAST_LINES = 15  # of a command that failed


class Failed(Exception):
    """A command did not end as it should."""


class Skipped(Exception):
    """A piece cannot be measured here."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where and how large a piece is measured; runs its commands.

    Attributes:
      folder: where results go.
      scale: how large everything is.
      data: folder of Multi30k, segmented.
      peers: Python that has the peers.
      ends: when the piece has to be done, by ``time.monotonic``.
    """

    folder: Path
    scale: Scale = Scale()
    data: Path | None = None
    peers: str = sys.executable
    ends: float = math.inf

    def command(self, *arguments: str, **environment: str) -> str:
        """Run a program of this project to its end; return its standard output."""
        line = [sys.executable, *arguments]
        say(" ".join(arguments))
        try:
            run = subprocess.run(
                line,
                capture_output=True,
                text=True,
                env=self._environment(environment),
                timeout=min(LIMIT, max(1.0, self.ends - time.monotonic())),
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {LIMIT} s: {' '.join(arguments)}") from None
        if run.returncode:
            text = run.stdout + run.stderr
            raise _failed(f"exit code {run.returncode}", arguments, text)
        return run.stdout

    def stop(self, how: signal.Signals, mark: str, *arguments: str, **env: str) -> None:
        """Run a program until a line starts with ``mark``, then send it a signal."""
        line = [sys.executable, *arguments]
        say(f"{' '.join(arguments)} (until {mark!r}, then {how.name})")
        process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment(env | {"PYTHONUNBUFFERED": "1"}),
        )
        assert process.stdout is not None
        left = min(LIMIT, max(1.0, self.ends - time.monotonic()))
        end = time.monotonic() + left
        clock = threading.Timer(left, process.kill)
        clock.start()
        lines, reached = [], False
        with process:
            for one in process.stdout:
                lines.append(one)
                reached = one.startswith(mark)
                if reached:
                    process.send_signal(how)
                    process.communicate()
                    break
        clock.cancel()
        if time.monotonic() >= end:
            what = f"no end at {mark!r} within {left:.0f} s"
            raise _failed(what, arguments, "".join(lines))
        if not reached:
            what = f"exit code {process.returncode}"
            raise _failed(what, arguments, "".join(lines))

    def transformer(self, *arguments: str, **environment: str) -> str:
        """Run ``transformer COMMAND``."""
        return self.command("-m", "transformer", *arguments, **environment)

    def bench(self, name: str, *arguments: str, **environment: str) -> dict[str, Any]:
        """Run ``transformer bench``, or read what it has written under this name."""
        output = self.folder / "bench" / f"{name}.json"
        output.parent.mkdir(exist_ok=True)
        if not output.exists():
            flags = (*arguments, *self.scale.bench, f"--output={output}")
            printed = self.transformer("bench", *flags, **environment)
            output.with_suffix(".txt").write_text(printed)  # the profile's costliest
        return json.loads(output.read_text())

    def inside(self, work: str, *arguments: str) -> dict[str, Any]:
        """Run ``on_device.py``."""
        output = self.folder / f"{work}.inside.json"
        self.command(str(HERE / "on_device.py"), work, f"--output={output}", *arguments)
        return json.loads(output.read_text())

    def workdir(self, name: str) -> Path:
        """Return a folder for a run."""
        return self.folder / "runs" / name

    def experiment(self, name: str) -> str:
        """Return the flag that names a configuration."""
        return f"--config={ROOT / 'experiments' / name}"

    def corpus(self, name: str) -> str:
        """Return the flag that makes runs share a corpus."""
        return f"--config.data.prepared={self.folder / 'corpus' / name}"

    def platform(self) -> str:
        """Return the platform that the piece ``peaks`` saw."""
        path = self.folder / "peaks.json"
        if not path.exists():
            raise Failed("expected peaks.json: measure the piece `peaks` first")
        found = json.loads(path.read_text())["found"]
        kind = found["machine"]["platform"].lower()
        if "cuda" in kind:
            return "gpu"
        return "tpu" if "tpu" in kind else kind

    def _environment(self, given: Mapping[str, str]) -> dict[str, str]:
        cache = {"JAX_COMPILATION_CACHE_DIR": str(self.folder / "xla")}
        return {**os.environ, **our_environment(), **cache, **given}


def _failed(what: str, arguments: Sequence[str], text: str) -> Failed:
    last = "\n".join(text.strip().splitlines()[-_LAST_LINES:])
    return Failed(f"{what}: {' '.join(arguments)}\n{last}")


def say(text: str) -> None:
    """Print a line on standard error: the section goes to standard output."""
    print(text, file=sys.stderr, flush=True)

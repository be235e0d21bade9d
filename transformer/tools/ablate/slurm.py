"""A Slurm cluster as a launcher, through submitit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer.config import UserError
from transformer.tools.ablate.launchers import Job, start_process


class Slurm:
    """Submits processes to Slurm through submitit.

    A job that reaches its time limit, or has to make room for another one, gets SIGTERM
    and is put back into the queue.
    """

    pause = 5.0

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str],
        jobs: int | None,
        cluster: str = "slurm",
    ) -> None:
        """Check the options.

        Args:
          folder: for submitit's files and logs; the nodes of the cluster see it too.
          options: of submitit's SlurmExecutor, "partition" and the like; "time" in
            minutes.
          jobs: submitted at a time, None = all.
          cluster: submitit's name of an executor; another than "slurm" for tests.
        """
        try:
            import submitit
        except ImportError:
            raise UserError(
                "--launcher=slurm: expected the package submitit, which is not "
                "installed; install this package with its extra: [slurm]"
            ) from None
        values = {"timeout_min": 240} | {k: _option(k, v) for k, v in options.items()}
        try:
            # submitit hands a job to its node as a pickle, in this folder. That is
            # internal to submitit: nothing here reads or writes one.
            self._executor = submitit.AutoExecutor(
                folder / "%j", cluster, slurm_max_num_timeout=100
            )
            self._executor.update_parameters(
                **{f"slurm_{key}": value for key, value in values.items()}
            )
        except RuntimeError:
            raise UserError(
                "--launcher=slurm: expected a machine in a Slurm cluster, found no "
                "srun; leave --launcher out"
            ) from None
        except (NameError, ValueError, TypeError) as error:  # from the options
            first = str(error).splitlines()[0]
            raise UserError(f"--slurm.KEY: {first}; change it") from None
        self.slots = jobs

    def start(self, command: Sequence[str], log: Path, name: str, slot: int) -> Job:
        """Submit a job; the slot is not used."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        self._executor.update_parameters(name=name.replace(" ", "_"))
        try:
            job = self._executor.submit(Task(tuple(command), str(log)))
        except (FailedJobError, FailedSubmissionError) as error:
            last = str(error).strip().splitlines()[-1]
            raise UserError(
                f"--launcher=slurm: expected a job that Slurm accepts, got: {last}; "
                "change the options --slurm.KEY"
            ) from None
        return _Submitted(job, log)


def _option(key: str, value: str) -> int | str | bool | list[str]:
    """Return the value of ``--slurm.KEY=VALUE`` as submitit wants it."""
    if re.fullmatch(r"\d+", value):
        return int(value)
    if key in ("time", "timeout_min"):
        raise UserError(
            f"--slurm.{key}: expected minutes, a whole number, got {value}; change it"
        )
    if key in ("setup", "teardown", "srun_args"):
        return [value]
    return True if value == "true" else value


class _Submitted:
    def __init__(self, job: Any, log: Path) -> None:
        self._job, self._log = job, log
        self._cancelled = False

    def poll(self) -> int | None:
        # Slurm itself is asked every 10 minutes only, unless an end is expected.
        if not self._job.done(force_check=self._cancelled):
            return None
        if self._cancelled:  # submitit would wait for its result, if any
            return -signal.SIGTERM
        error = self._job.exception()
        if error is None:
            return int(self._job.result())
        last = str(error).strip().splitlines()[-1]
        # A job that failed before it began has made no folder.
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"Slurm job {self._job.job_id}, {self._job.state}: {last}\n")
        return 1

    def stop(self) -> None:
        self._cancelled = True
        self._job.cancel(check=False)

    kill = stop


class Task:
    """What a node of the cluster does: run a command, and save it in time."""

    def __init__(self, command: tuple[str, ...], log: str) -> None:
        self._command, self._log = command, log

    def __call__(self) -> int:
        """Run the command to its end; return its exit code."""
        # Slurm signals the time limit to all processes of a job; the command would die
        # of what is meant for submitit, which then calls `checkpoint`.
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        self._process = start_process(self._command, Path(self._log), {})
        signal.signal(signal.SIGUSR2, before)
        try:
            while self._process.poll() is None:
                time.sleep(0.5)
        finally:
            self._process.terminate()  # nothing, unless this was interrupted
        return self._process.returncode

    def checkpoint(self) -> Any:
        """Let the command save and end; return what submitit queues in its place."""
        from submitit.helpers import DelayedSubmission

        self._process.terminate()
        # This interrupts `poll`, whose lock `wait` would wait for.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(Task(self._command, self._log))

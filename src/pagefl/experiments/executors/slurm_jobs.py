"""Runs as Slurm jobs, through submitit. A job that is preempted or runs out of time is queued again."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from pagefl.core.errors import UserError, shortened, shown

from .one_run import Ending, Task, attempt_on_node, versions

CLUSTER = "slurm"  # as submitit calls it; tests use its "local" and "debug"
FOLDER = "slurm"  # beside the runs: scripts, logs and results of jobs
MINUTES = 60  # of a job, if the user does not say
REQUEUED = 1000  # times that a job may run out of time
ARRAY = 500  # jobs in one array; most sites allow 1000
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 120.0  # of a job that was told to stop
SHARED = {"time": "timeout_min", "job_name": "name", "cpus_per_task": "cpus_per_task"}  # names of submitit
NUMBERS = {
    "time": "whole minutes, such as 120",
    "cpus_per_task": "a whole number of CPUs",
    "array_parallelism": "a whole number of jobs",
}
ONE_NODE = ("nodes", "ntasks", "ntasks_per_node", "array")
LISTS = ("setup", "teardown", "srun_args")


class Run:
    """What submitit pickles: a name and, as arguments, text and numbers."""

    def __call__(self, spec_text: str, path: str, workers: int, wanted: dict[str, str]) -> Ending:
        ending = attempt_on_node(spec_text, path, workers, wanted)
        if ending.stopped:
            # Slurm sends a TERM first, and then the signal by which submitit queues the job again, or a KILL.
            # The job must not end in between, as if it were done.
            sleep(PATIENCE_SECONDS)
        return ending

    def checkpoint(self, *arguments: Any) -> Any:
        """Called by submitit before it queues the job again: the run's directory has all that is needed."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


class SlurmJobs:
    def __init__(self, jobs: int, options: Mapping[str, Any], folder: Path) -> None:
        """`jobs`: at once; 0 for as many as the cluster has room for. `options`: of sbatch."""
        import submitit

        self.submitit, self.jobs, self.options = submitit, jobs, checked(options)
        self.tasks: dict[str, Any] = {}
        try:
            self.executor = submitit.AutoExecutor(
                folder.absolute() / FOLDER, cluster=CLUSTER, slurm_max_num_timeout=REQUEUED
            )
        except RuntimeError:
            raise UserError(
                "slurm: there is no srun here; start the sweep on a node of the cluster"
            ) from None

    @property
    def running(self) -> int:
        return len(self.tasks)

    @property
    def room(self) -> int:
        return self.jobs - self.running if self.jobs else ARRAY

    def start(self, tasks: Sequence[Task]) -> None:
        """Jobs that need the same are one array."""
        for workers, group in groupby(tasks, lambda task: task.workers):
            cpus = self.options.get("cpus_per_task", workers or 1)
            self._parametrise(cpus)
            some = list(group)
            try:
                with self.executor.batch():
                    jobs = [
                        self.executor.submit(Run(), each.spec_text, each.path, workers or cpus, versions())
                        for each in some
                    ]
            except self.submitit.core.utils.FailedJobError as error:
                last = str(error).strip().splitlines()[-1]
                raise UserError(f"slurm: sbatch refused the jobs: {shortened(last, 200)}") from None
            self.tasks |= {each.name: job for each, job in zip(some, jobs, strict=True)}

    def _parametrise(self, cpus: int) -> None:
        known = self.submitit.SlurmExecutor._valid_parameters() - {"additional_parameters"}
        usual = {"job_name": "pagefl", "time": MINUTES, "array_parallelism": ARRAY}
        given = {**usual, **self.options, "cpus_per_task": cpus}
        parameters = {
            SHARED.get(name, f"slurm_{name}"): value for name, value in given.items() if name in known
        }
        others = {name: value for name, value in given.items() if name not in known}
        self.executor.update_parameters(**parameters, slurm_additional_parameters=others)

    def ended(self, seconds: float) -> list[tuple[str, Ending]]:
        until = monotonic() + seconds
        while not (names := [name for name, job in self.tasks.items() if job.done()]) and monotonic() < until:
            sleep(POLL_SECONDS)
        return [(name, self._ending(self.tasks.pop(name))) for name in names]

    def _ending(self, job: Any) -> Ending:
        utils = self.submitit.core.utils
        try:
            ending: Ending = job.result()
            return ending
        except (utils.UncompletedJobError, utils.FailedJobError):
            return Ending(
                problem=f"its Slurm job {job.job_id} ended as {job.state}, without a result; see "
                f"{job.paths.stderr}"
            )

    def interrupt(self) -> None:
        self.close()

    def close(self) -> None:
        for job in self.tasks.values():
            job.cancel(check=False)
        self.tasks = {}


def parsed(assignments: Sequence[str]) -> dict[str, Any]:
    """Options from a command line, such as `partition=short`."""
    found: dict[str, Any] = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign or not name.strip() or not value.strip():
            raise UserError(
                f"--slurm {shortened(text)}: expected KEY=VALUE with an option of sbatch, such as "
                "partition=short or time=120"
            )
        found[name.strip()] = value.strip()
    return found


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as submitit wants them. Names are those of sbatch: `cpus-per-task` or `cpus_per_task`."""
    found: dict[str, Any] = {}
    for given, value in options.items():
        name = given.lstrip("-").replace("-", "_")
        where = f"slurm {shortened(given)} = {shown(value)}"
        if not re.fullmatch(r"[a-z_]+", name) or "\n" in str(value):
            raise UserError(f"{where}: expected an option of sbatch, such as partition or mem")
        if name in ONE_NODE:
            raise UserError(f"{where}: one job is one run, on one node; leave it out")
        if name in NUMBERS:
            if not str(value).isdecimal() or not int(value):
                raise UserError(f"{where}: expected {NUMBERS[name]}")
            value = int(value)
        elif str(value).lower() == "true":
            value = True  # an option without a value, such as exclusive
        found[name] = [str(value)] if name in LISTS else value
    return found

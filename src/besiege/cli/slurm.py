"""``besiege slurm``: writes the script of a SLURM job array that runs a benchmark."""

from __future__ import annotations

import os
import sys
from math import ceil
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text

from besiege.bench.folder import run_folder
from besiege.cli import screen
from besiege.cli.evaluate import RUNS
from besiege.cli.grammar import Count, Device, Place, Threads, counted, examples, flowing
from besiege.cli.spec import Spec, prepared_spec, read_spec
from besiege.core.errors import InputError
from besiege.core.files import replace_file
from besiege.core.shell import shell

SLACK = 2.0
"""Times as long as the forecast: nodes differ, and a part that is stopped waits in the queue."""
LEAST = 15 * 60.0
MOST = 100_000
"""Seconds that every part may take at least, and parts that an array may have."""

command = App(
    name="slurm",
    help_epilogue=examples(
        "besiege slurm digits.toml --parts 8 > job.sh && sbatch job.sh",
        'besiege slurm cifar10.toml --parts 4 --file job.sh --sbatch="--gres=gpu:1"',
    ),
)


@command.default
@flowing
def slurm(
    spec: Spec,
    /,
    *,
    parts: Annotated[int, counted(1), Parameter(metavar="N")] = 8,
    out: Annotated[Place | None, Parameter(metavar="FOLDER")] = None,
    hours: Annotated[float | None, Parameter(metavar="H")] = None,
    sbatch: Annotated[tuple[str, ...], Parameter(metavar="OPTION", negative="")] = (),
    file: Annotated[Place | None, Parameter(metavar="FILE")] = None,
    count: Count = None,
    device: Device = None,
    threads: Threads = None,
) -> int:
    """Write the script of a SLURM job array that runs a benchmark on a shared disk.

    Every part of the array is a process that does what no other one does. Submit the script again
    to resume parts that were stopped.

    Parameters
    ----------
    spec
        TOML file of the benchmark.
    parts
        Number of parts of the array.
    out
        Run folder, on a disk that all nodes share; by default one in besiege-runs.
    hours
        Hours that each part may take; by default twice the forecast of `besiege spec show`.
    sbatch
        Further option of sbatch, such as --partition=gpu; may be given several times.
    file
        File to write; standard output by default.
    count
        Number of images, in place of that in the file.
    """
    wrong = [one for one in sbatch if not one.startswith("-") or "\n" in one]
    if wrong:
        raise InputError(f"--sbatch is {wrong[0]!r}: write an option of sbatch, --partition=gpu")
    if parts > MOST or (hours is not None and not 0 < hours <= MOST):
        raise InputError(f"--parts and --hours are at most {MOST:,}, and more than 0")
    declared = read_spec(spec, count)
    named = declared.benchmark.name + ("" if count is None else f"-{count}")
    folder = run_folder(RUNS / named if out is None else out)
    if hours is None:
        from besiege.bench.forecast import forecast

        found = forecast(prepared_spec(declared, device, threads))
        if found.seconds is None:
            raise InputError("the time of a model that is only queried is not known: give --hours")
        seconds = max(LEAST, SLACK * found.seconds / parts)
    else:
        seconds = 3600 * hours
    options = {"--count": count, "--device": device}
    words: list[object] = ["run", os.path.abspath(spec), "--out", folder.absolute()]
    for name, value in options.items():
        words += [] if value is None else [name, value]
    text = script(named, parts, seconds, words, threads or 1, sbatch)
    if file is None:
        screen.results().write(text)
    else:
        replace_file(Path(file), text.encode())
        screen.verbatim(screen.out(), Text(f"sbatch {shell([file])}"))
    return 0


def script(
    name: str,
    parts: int,
    seconds: float,
    words: list[object],
    threads: int = 1,
    sbatch: tuple[str, ...] = (),
) -> str:
    """The text of the script.

    Examples
    --------
    >>> print(script("digits", 4, 5400, ["run", "/shared/digits.toml"]).splitlines()[3])
    #SBATCH --time=01:30:00
    """
    minutes = ceil(seconds / 60)
    job = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    head = [
        f"--job-name=besiege-{job}",
        f"--array=1-{parts}",
        f"--time={minutes // 60:02d}:{minutes % 60:02d}:00",
        f"--cpus-per-task={threads}",
        *sbatch,
    ]
    command = shell([sys.executable, "-m", "besiege", *words])
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in head),
            "set -eu",
            "# Each part does what no other one does now. Submit this file again to resume.",
            f'export OMP_NUM_THREADS="${{SLURM_CPUS_PER_TASK:-{threads}}}"',
            f"cd {shell([os.getcwd()])}",
            f'exec {command} --threads "$OMP_NUM_THREADS" \\',
            f'  --part "${{SLURM_ARRAY_TASK_ID:?}}/{parts}"',
            "",
        ]
    )

"""`OnnxModel`: an ONNX file as a black-box victim, run by onnxruntime on the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from besiege.core.errors import DataError, InputError, VictimError, near
from besiege.core.threat import Access
from besiege.core.victim import Victim
from besiege.models.black_box import BlackBox, Keep, Logits, Pixels
from besiege.models.classifier import normalisation
from besiege.models.functions import checked_count

BATCH = 64
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}
# Suffixes of the files in which exporters put weights that are not in the ONNX file.
_BESIDE = (".data", "_data")


class OnnxModel(BlackBox, Victim):
    """A network in an ONNX file, which returns scores or labels and gives no gradients.

    The file's declaration of its input is followed: its type (bytes have 256 levels, so `grid` is
    1/255 of the box), a fixed number of images per run, channels first or last.

    Parameters
    ----------
    path : path
        The file.
    mean, std : float or sequence of float, optional
        Normalisation before the graph, if the graph does not contain it; both or neither.
    output : str, optional
        Which of its outputs to use; the first when not given. Whole numbers are labels.
    layout : {"NCHW", "NHWC"}, optional
        Whether channels come first or last; read from the file if its shape shows it.
    classes, access, outputs, top_k, box, grid
        As for `besiege.function_model`.
    batch : int, optional
        Largest number of images in one run.
    threads : int
        Number of threads of onnxruntime. More may change the last digits of answers.
    name : str, optional
        Name in reports; the file's name when not given.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        output: str | None = None,
        layout: str | None = None,
        classes: int | None = None,
        access: str | Access | None = None,
        outputs: str | None = None,
        top_k: int | None = None,
        box: tuple[float, float] = (0.0, 1.0),
        grid: float | None = None,
        batch: int | None = None,
        threads: int = 1,
        name: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._content = _digest(self.path)
        self.mean, self.std = normalisation(mean, std)
        self._session = _session(self.path, checked_count("threads", threads) or 1)
        taken = self._session.get_inputs()
        if len(taken) != 1:
            names = ", ".join(one.name for one in taken)
            raise InputError(f"{self.path} takes {len(taken)} inputs ({names}), not one image")
        self._input = taken[0]
        self._shape: list[Any] = list(self._input.shape)
        if self._input.type not in _DTYPES:
            raise InputError(
                f"{self.path} takes {self._input.type}, but images are one of {', '.join(_DTYPES)}"
            )
        self._dtype: Any = _DTYPES[self._input.type]
        chosen = self._chosen(output)
        labels = chosen.type.startswith("tensor(int") or chosen.type == "tensor(string)"
        self._output = chosen.name
        self.layout = _layout(layout, self._shape, self.path)
        super().__init__(
            str(path) if name is None else name,
            classes=_columns(chosen) if classes is None and not labels else classes,
            access=access if access is not None else "decision" if labels else "score",
            outputs=outputs,
            top_k=top_k,
            box=box,
            grid=grid,
            stochastic=False,
            as_bytes=self._dtype is np.uint8,
        )
        if self.as_bytes and self.mean is not None:
            raise InputError(f"{self.path} takes bytes, which are not normalised: leave mean out")
        self._fixed = self._shape[0] if self._shape and isinstance(self._shape[0], int) else None
        self.batch = self._fixed or checked_count("batch", batch) or BATCH

    def digest(self) -> str:
        """SHA-256 of the file's content and of how it is queried; not of its path."""
        graph = (self._content, self.mean, self.std, self._output, self.layout, self.access)
        reader = (self.reader.outputs, self.reader.top_k, self.declared)
        about = (*graph, *reader, self.box, self.grid)
        return hashlib.sha256(f"onnx {about}".encode()).hexdigest()

    def _chosen(self, output: str | None) -> Any:
        given = {one.name: one for one in self._session.get_outputs()}
        if output is None:
            return next(iter(given.values()))
        if output not in given:
            raise InputError(f"{self.path} has no output '{output}': {near(output, given)}")
        return given[output]

    def _answers(self, pixels: Pixels, keep: Keep | None) -> Logits:
        return self._in_batches(pixels, self.batch, self._run, keep)

    def _prepared(self, pixels: Pixels) -> Pixels:
        """Images in the form that the graph takes."""
        if self.mean is not None and self.std is not None:
            mean, std = (np.array(v, np.float32).reshape(-1, 1, 1) for v in (self.mean, self.std))
            pixels = (pixels - mean) / std
        if self.layout == "NHWC":
            pixels = pixels.transpose(0, 2, 3, 1)
        if len(self._shape) == 2:
            pixels = pixels.reshape(len(pixels), -1)
        if self._fixed is not None and len(pixels) < self._fixed:
            # The graph takes a fixed number of images: repeat the last one to fill the batch.
            pixels = np.concatenate([pixels, *[pixels[-1:]] * (self._fixed - len(pixels))])
        return np.ascontiguousarray(pixels, dtype=self._dtype)

    def _run(self, pixels: Pixels) -> Any:
        values = self._prepared(pixels)
        try:
            return self._session.run([self._output], {self._input.name: values})[0][: len(pixels)]
        except Exception as problem:  # onnxruntime has its own exception for every status
            raise VictimError(
                f"{self.name} takes {self._input.type} {self._shape}, and could not take "
                f"{values.dtype} {list(values.shape)}: {_first_line(problem)}"
            ) from problem


def _session(path: Path, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise InputError(
            f"{path} is an ONNX file, which onnxruntime runs, and that is not installed: "
            'pip install "besiege[onnx]"'
        ) from None
    options = onnxruntime.SessionOptions()
    # Another number of threads sums in another order, which changes the last digits of answers.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as problem:
        raise DataError(f"{path} cannot be opened by onnxruntime: {_first_line(problem)}") from None


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]


def _digest(path: Path) -> str:
    """SHA-256 of a file, and of a file of weights beside it if there is one."""
    digest = hashlib.sha256()
    beside = [path.with_name(path.name + suffix) for suffix in _BESIDE]
    for file in (path, *(one for one in beside if one.is_file())):
        try:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except FileNotFoundError:
            raise DataError(f"{file} does not exist") from None
        except OSError as problem:
            raise DataError(f"{file} cannot be read: {problem.strerror}") from None
    return digest.hexdigest()


def _columns(output: Any) -> int | None:
    """The number of classes of an output, if its shape declares it."""
    last = output.shape[-1] if len(output.shape) == 2 else None
    return last if isinstance(last, int) and last > 1 else None


def _layout(given: str | None, shape: Sequence[Any], path: Path) -> str:
    known = ("NCHW", "NHWC")
    if given is not None:
        if given not in known:
            raise InputError(f"layout is {given!r}: {near(str(given), known)}")
        return given
    if len(shape) not in (2, 4):
        raise InputError(
            f"{path} takes {list(shape)}, but images are [rows, channels, height, width]"
        )
    colours = (1, 3)
    last = len(shape) == 4 and shape[3] in colours and shape[1] not in colours
    return "NHWC" if last else "NCHW"

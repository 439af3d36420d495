"""`trace`: the graph of a victim, from the operations that it runs on an image.

Every function of torch that reads a value which depends on the image must be known. An unknown one
is refused with its place, so that no operation is missing in a graph. The graph must then answer
like the victim, also in another number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from besiege.bounds.graph import Graph, Node
from besiege.bounds.known import FACTS, KNOWN, Unbounded
from besiege.bounds.operations import Constant, Linear, Operation, Reshaping, Scaling
from besiege.core.door import is_single, is_theirs, named_logits, raised
from besiege.core.errors import BoundError
from besiege.core.victim import Victim, floating
from besiege.defenses.defended import Defended
from besiege.models.classifier import Classifier

ROWS = 3
TOLERANCE = 1e-4
"""How far the graph's logits may be from the victim's, in units of the largest logit."""


def trace(victim: Victim, example: Tensor) -> Graph:
    """The graph of a victim's logits.

    Parameters
    ----------
    victim : Victim
        A `Classifier` of a deterministic network.
    example : Tensor
        Images ``[rows, channels, height, width]`` inside the box.

    Raises
    ------
    BoundError
        If the victim is no such network, or has an operation without a bound; the message names
        the operation and the module that calls it.
    """
    network = _network(victim, example.dtype)
    # Autograd counts changes in place, which an inference tensor does not show.
    with torch.inference_mode(False), torch.no_grad(), network.held():
        images = example[:1].repeat(ROWS, 1, 1, 1)
        recorder = _Recorder(images, network.name)
        values = images
        if network.mean is not None and network.std is not None:
            mean, std = (
                images.new_tensor(v).reshape(1, -1, 1, 1) for v in (network.mean, network.std)
            )
            values = recorder.keep(Scaling(1 / std, -mean / std), [values], (values - mean) / std)
        with recorder.inside(network.module), recorder:
            try:
                answer = named_logits(network.module(values))
            except BaseException as problem:
                if not is_theirs(problem):
                    raise
                raise raised(problem, tuple(images.shape)) from problem
        graph = recorder.finished(answer)
        _must_agree(graph, network, example[:8])
    return graph


def _network(victim: Victim, precision: torch.dtype) -> Classifier:
    """The victim, if it is a network whose logits of images in a precision can be bounded."""
    name = victim.name
    if victim.stochastic:
        raise BoundError(
            f"'{name}' is stochastic, and bounds hold for one fixed function only: randomised "
            "smoothing is the certificate of a stochastic classifier"
        )
    if not isinstance(victim, Classifier) or type(victim).__call__ is not Classifier.__call__:
        layers = victim.layers if isinstance(victim, Defended) else ()
        inside = [type(layer).__name__ for layer in layers]
        what = (
            f"its layers ({', '.join(inside)}) have" if inside else f"{type(victim).__name__} has"
        )
        raise BoundError(
            f"'{name}' cannot be bounded: {what} no bounds. Networks have (zoo:, public:, "
            "or FILE:FACTORY); randomised smoothing certifies any model, with the method smoothing "
            f"and '{name}+smoothed(sigma=0.25)'"
        )
    if victim.sizing is not None:
        raise BoundError(f"'{name}' resizes its images, which has no bounds: give images that fit")
    if victim.outputs == "probabilities":
        raise BoundError(
            f"'{name}' returns probabilities: bounds need logits. Return those of the last layer"
        )
    kind = floating(victim.module)
    if kind is not None and kind.dtype != precision:
        mine, given = (str(one).removeprefix("torch.") for one in (kind.dtype, precision))
        raise BoundError(
            f"'{name}' computes in {mine}, and bounds are about images in {given}: certify a copy "
            "of the network in that precision, such as net.float()"
        )
    return victim


def _must_agree(graph: Graph, network: Classifier, images: Tensor) -> None:
    ours, theirs = graph(images), network(images)
    shifted = images.flip(0).roll(1, -1)
    again, other = graph(shifted), network(shifted)
    for one, two in ((ours, theirs), (again, other)):
        scale = max(1.0, float(two.abs().max()))
        if one.shape != two.shape or float((one - two).abs().max()) > TOLERANCE * scale:
            raise BoundError(
                f"the operations of '{network.name}' that could be followed do not give its "
                "answers: the module overwrites values, or computes outside of torch"
            )


class _Recorder(TorchFunctionMode):
    """Notes every function of torch that reads a value which depends on the image."""

    def __init__(self, images: Tensor, name: str) -> None:
        super().__init__()
        self.name = name
        self.nodes = [Node(None, (), tuple(images.shape[1:]))]
        self._of: dict[int, int] = {id(images): 0}
        self._alive: list[Tensor] = [images]  # an id is of one tensor while that is alive
        self._path: list[str] = []

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """Follows which module is at work, for error messages."""
        hooks = []
        for path, part in module.named_modules():
            hooks.append(part.register_forward_pre_hook(self._entering(path)))
            hooks.append(part.register_forward_hook(self._leaving))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._path.append(path)

        return enter

    def _leaving(self, *_: Any) -> None:
        self._path.pop()

    @property
    def place(self) -> str:
        """The module at work."""
        path = self._path[-1] if self._path else ""
        return f"'{path}' of {self.name}" if path else self.name

    def keep(self, operation: Operation, read: list[Tensor], result: Tensor) -> Tensor:
        """Note an operation and its result."""
        numbers = tuple(self._number(value, result) for value in read)
        self.nodes.append(Node(operation, numbers, tuple(result.shape[1:]), self.place))
        self._of[id(result)] = len(self.nodes) - 1
        self._alive.append(result)
        return result

    def _number(self, value: Tensor, result: Tensor) -> int:
        """The node of a value; a constant becomes a node of its own."""
        if id(value) in self._of:
            return self._of[id(value)]
        shape = tuple(value.shape)
        if value.ndim == result.ndim and shape[0] == ROWS and bool((value == value[:1]).all()):
            value = value[:1]
        value = value.reshape((1,) * (result.ndim - value.ndim) + tuple(value.shape))
        if len(value) != 1:
            raise self.unbounded("a constant that differs between rows")
        self.nodes.append(Node(Constant(value), (), tuple(value.shape[1:]), self.place))
        return len(self.nodes) - 1

    def unbounded(self, what: str) -> BoundError:
        """The error for something without a bound."""
        return BoundError(
            f"{what} at {self.place} has no bounds, so nothing can be certified. Known are "
            "convolutions, linear layers, ReLU, leaky ReLU, batch norm, average, max and adaptive "
            "pooling, reshaping, sums and concatenation"
        )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        read = [value for value in _tensors((args, kwargs)) if id(value) in self._of]
        if not read or func in FACTS:
            return func(*args, **kwargs)
        name = resolve_name(func) or getattr(func, "__name__", str(func))
        known = KNOWN.get(func)
        if known is None:
            raise self.unbounded(f"the operation {name}")
        before = [value._version for value in read]
        result = func(*args, **kwargs)
        try:
            operation, inputs = known(result, *args, **kwargs)
        except Unbounded as problem:
            raise self.unbounded(f"{problem} in the operation {name}") from None
        except TypeError:
            raise self.unbounded(f"the operation {name} with these arguments") from None
        changed = any(value._version != old for value, old in zip(read, before, strict=True))
        if changed:
            self._must_own(result)
        if not {id(value) for value in read} <= {id(value) for value in inputs}:
            raise self.unbounded(f"the operation {name} of two values that depend on the image")
        if operation is None:
            self._of[id(result)] = self._of[id(inputs[0])]
            self._alive.append(result)
            return result
        if result.ndim < 1 or len(result) != ROWS:
            raise self.unbounded(f"the operation {name}, which mixes images,")
        return self.keep(operation, inputs, result)

    def _must_own(self, result: Tensor) -> None:
        """An operation in place must not change a value that another tensor shows."""
        memory = result.untyped_storage().data_ptr()
        if any(
            value is not result and value.untyped_storage().data_ptr() == memory
            for value in self._alive
        ):
            raise self.unbounded("an operation in place on values that are read elsewhere")

    def finished(self, answer: object) -> Graph:
        """The graph that ends in an answer."""
        if not isinstance(answer, Tensor) or id(answer) not in self._of:
            raise BoundError(
                f"what '{self.name}' answers does not follow from the image by operations of torch "
                "that could be followed, so nothing can be certified"
            )
        last = self._of[id(answer)]
        if is_single(answer, ROWS):
            self.keep(Reshaping((1,)), [answer], flat := answer.reshape(ROWS, 1))
            # As `of_two_classes` has them.
            halves = Linear(flat.new_tensor([[-0.5], [0.5]]), None)
            self.keep(halves, [flat], halves(flat))
            last = len(self.nodes) - 1
        if len(self.nodes[last].shape) != 1:
            raise BoundError(f"'{self.name}' answers {list(answer.shape)}, which are no logits")
        return Graph(_needed(self.nodes, last))


def _needed(nodes: list[Node], last: int) -> tuple[Node, ...]:
    """The nodes that a node depends on, and the image."""
    wanted, stack = {0}, [last]
    while stack:
        number = stack.pop()
        if number not in wanted:
            wanted.add(number)
            stack += nodes[number].parents
    kept = sorted(wanted)
    new = {old: number for number, old in enumerate(kept)}
    return tuple(
        Node(node.operation, tuple(new[p] for p in node.parents), node.shape, node.place)
        for node in (nodes[number] for number in kept)
    )


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))

"""Random numbers without state: every draw is a hash of seed, sample, purpose and counter.

A sample's draws therefore do not depend on its neighbours, on the batch size, on the order of
the batch or on what was drawn before, and the global random state is never touched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


# Odd 64-bit constants: the golden ratio for the counters, two multipliers found by
# Stafford for the finaliser ("mix 13").
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)
_BITS = (1 << 24) - 1


def _fold_(x: Tensor, bits: int, spare: Tensor) -> Tensor:
    # Right shifts of int64 are arithmetic in torch: the mask clears the copied sign bits.
    torch.bitwise_right_shift(x, bits, out=spare)
    return x.bitwise_xor_(spare.bitwise_and_((1 << (64 - bits)) - 1))


def _mix_(x: Tensor) -> Tensor:
    """Scramble 64 bits in place so that each output bit depends on every input bit."""
    spare = torch.empty_like(x)
    _fold_(x, 30, spare).mul_(_FIRST)
    _fold_(x, 27, spare).mul_(_SECOND)
    return _fold_(x, 31, spare)


def _word(*purpose: str | int) -> int:
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in purpose)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


@dataclass(frozen=True)
class Dice:
    """A stream of random numbers for every row.

    Parameters
    ----------
    key : Tensor
        int64 ``[rows]``, the seed of each row's hash.

    Examples
    --------
    >>> import torch
    >>> dice = Dice.throw(seed=0, ids=torch.arange(3)).of("start")
    >>> dice.uniform((2, 2)).shape
    torch.Size([3, 2, 2])
    """

    key: Tensor

    @classmethod
    def throw(cls, seed: int, ids: Tensor) -> Dice:
        """The dice of some samples under a seed."""
        key = ids.to(torch.int64) * _GOLDEN + _word("seed", seed)
        return cls(_mix_(key))

    def of(self, *purpose: str | int) -> Dice:
        """The same rows for another purpose, independent of this one."""
        return Dice(_mix_(self.key + _word(*purpose)))

    def counted(self, counter: Tensor) -> Dice:
        """The same rows with other draws for every value of a counter, ``[rows]``."""
        return Dice(self._words(1, counter)[:, 0])

    def at(self, rows: Tensor) -> Dice:
        """The dice of some of the rows."""
        return Dice(self.key[rows])

    def __len__(self) -> int:
        return len(self.key)

    def uniform(self, shape: tuple[int, ...], counter: Tensor | int = 0) -> Tensor:
        """Uniforms in [0, 1), float32, ``[rows, *shape]``; 24 bits each.

        Parameters
        ----------
        shape : tuple of int
            Shape of one row's draw.
        counter : Tensor or int
            Which draw: a number, ``[rows]``, or ``[rows, k]`` for a result
            ``[rows, k, *shape]``.
        """
        return self._lanes(shape, counter).bitwise_and_(_BITS).to(torch.float32).mul_(2.0**-24)

    def normal(self, shape: tuple[int, ...], counter: Tensor | int = 0) -> Tensor:
        """Standard normals, float32, shaped as for `uniform`."""
        # Box-Muller on the two halves of every hashed word.
        pair = self._lanes((math.prod(shape) + 1 & -2,), counter).bitwise_and_(_BITS)
        pair = pair.to(torch.float32).view(*pair.shape[:-1], 2, pair.shape[-1] // 2)
        length = pair[..., 0, :].add_(1.0).mul_(2.0**-24).log_().mul_(-2.0).sqrt_()
        angle = pair[..., 1, :].mul_(2.0 * math.pi * 2.0**-24)
        cosine = torch.cos(angle).mul_(length)
        torch.mul(angle.sin_(), length, out=pair[..., 1, :])
        pair[..., 0, :] = cosine
        flat = pair.flatten(-2)[..., : math.prod(shape)]
        return flat.reshape(*flat.shape[:-1], *shape)

    def signs(self, shape: tuple[int, ...], counter: Tensor | int = 0) -> Tensor:
        """Fair signs -1 or 1, float32, shaped as for `uniform`."""
        return (self._lanes(shape, counter).bitwise_and_(2).sub_(1)).to(torch.float32)

    def integers(
        self, high: Tensor | int, shape: tuple[int, ...] = (), counter: Tensor | int = 0
    ) -> Tensor:
        """Whole numbers in [0, high), int64, shaped as for `uniform`; `high` may differ by row.

        The bias towards small numbers is below ``high / 2**32``.
        """
        lanes = self._lanes(shape, counter).to(torch.int64).bitwise_and_((1 << 32) - 1)
        if isinstance(high, Tensor):
            high = high.reshape(-1, *[1] * (lanes.dim() - 1))
        return lanes.mul_(high) >> 32

    def _words(self, count: int, counter: Tensor | int) -> Tensor:
        key = self.key
        if isinstance(counter, Tensor) and counter.dim() == 2:
            key = key[:, None]
        stride = (counter + 1) * _GOLDEN
        start = _mix_(key + (_signed(stride) if isinstance(stride, int) else stride))
        index = torch.arange(1, count + 1, device=key.device) * _GOLDEN
        return _mix_(start[..., None] + index)

    def _lanes(self, shape: tuple[int, ...], counter: Tensor | int) -> Tensor:
        """32 random bits, as int32, for every number requested: two from every hashed word."""
        count = math.prod(shape)
        lanes = self._words((count + 1) // 2, counter).view(torch.int32)
        return lanes[..., :count].reshape(*lanes.shape[:-1], *shape)


def random_targets(ids: Tensor, labels: Tensor, classes: int) -> Tensor:
    """A class other than the label for every sample; depends on id and number of classes only."""
    offset = Dice.throw(0, ids).of("target", classes).integers(classes - 1)
    return (labels + 1 + offset) % classes

"""The initial parameters of a large module, which wait in a file until a run begins from them."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

LARGE = 1 << 26  # bytes of parameters that wait in a file


class WaitingParameters:
    """Moves the numbers of large parameters to a temporary file, from which they are read whenever they are used.

    Where there is no room for the file, they stay in memory. A copy of this object, and one in another process, has no
    file: copied parameters are in memory.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._memory: mmap.mmap | None = None
        size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        if size >= LARGE:
            with contextlib.suppress(OSError), tempfile.TemporaryFile() as file:
                self._move(parameters, file.fileno(), size)

    def _move(self, parameters: Sequence[torch.nn.Parameter], descriptor: int, size: int) -> None:
        import torch

        with open(descriptor, "wb", closefd=False) as file:
            for parameter in parameters:
                file.write(parameter.detach().contiguous().reshape(-1).numpy().view(np.uint8).data)
        self._memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
        first = 0
        for parameter in parameters:
            length, shape = parameter.numel(), parameter.shape
            if length:
                numbers = torch.frombuffer(self._memory, dtype=parameter.dtype, count=length, offset=first)
                parameter.data = numbers.view(shape)
                first += length * parameter.element_size()

    def rest(self) -> None:
        """Free the memory that reading them has taken."""
        if self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._memory.madvise(mmap.MADV_DONTNEED)

    def __reduce__(self) -> tuple[type[WaitingParameters], tuple[tuple[()]]]:
        return WaitingParameters, ((),)

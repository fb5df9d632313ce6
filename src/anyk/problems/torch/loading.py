"""Items of a map-style data set, read by number: in this process, or in several others by torch's loader."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from anyk import keyed
from anyk.errors import RunFailed, describe_error
from anyk.problems.torch.generators import preserved_generators, seed_all

_ROUNDS = 4  # portions of a mini-batch for each process, so that slow items are balanced


def read(data: Any, key: int, numbers: Sequence[int]) -> list[Any]:
    """Return items of a data set; ``key`` and an item's number determine its draws from the global generators."""
    items = []
    with preserved_generators([]) as generators:
        for i in numbers:
            seed_all(generators, keyed.integer(key, "item", i))
            try:
                items.append(data[i])
            except Exception as error:
                raise RunFailed(f"item {i} of the data set cannot be read: {describe_error(error)}") from error
    return items


class Transformed:
    """A data set whose items are the items of another data set, changed by a function."""

    def __init__(self, data: Any, transform: Callable[[Any], Any]) -> None:
        self._data, self._transform = data, transform

    def __getitem__(self, number: int) -> Any:
        return self._transform(self._data[number])


class Readers:
    """Processes that read items of a data set as :func:`read` does; they end with this object or its process."""

    def __init__(self, data: Any, processes: int) -> None:
        import cloudpickle
        from torch import Generator
        from torch.utils.data import DataLoader

        self._portions: list[list[tuple[int, int]]] = []  # keys and numbers of the items that are read next
        self._processes = processes
        items: Any = _Keyed(cloudpickle.dumps(data))
        own = Generator()  # the loader draws a seed that is not used, which must not come from the global generator
        self._loader: Any = DataLoader(
            items,
            batch_sampler=self._portions,
            num_workers=processes,
            collate_fn=list,
            persistent_workers=True,
            prefetch_factor=_ROUNDS,
            generator=own,
            multiprocessing_context="spawn",
        )

    def read(self, key: int, numbers: Sequence[int]) -> list[Any]:
        size = -(-len(numbers) // (_ROUNDS * self._processes))
        self._portions[:] = [[(key, i) for i in numbers[a : a + size]] for a in range(0, len(numbers), size)]
        with _unnamed_main():  # the first time processes are started
            portions = iter(self._loader)
        items = [one for portion in portions for one in portion]
        for error, _ in items:
            if error:
                raise RunFailed(error)
        return [pickle.loads(body) for _, body in items]


class _Keyed:
    """A data set with items by key and number; each is an error's sentence, and the item's bytes."""

    def __init__(self, body: bytes) -> None:
        self._body = body  # by value where the classes are of a script or notebook
        self._data: Any = None

    def __getitem__(self, asked: tuple[int, int]) -> tuple[str, bytes]:
        if self._data is None:
            self._data, self._body = pickle.loads(self._body), b""
        key, number = asked
        try:
            item = read(self._data, key, [number])[0]
        except RunFailed as error:
            return str(error), b""
        try:
            return "", pickle.dumps(item, protocol=5)
        except Exception:  # of a class of a script or notebook
            import cloudpickle

            return "", cloudpickle.dumps(item)


@contextmanager
def _unnamed_main() -> Iterator[None]:
    """Hide the main module, which new processes would import although it need not have a ``__main__`` guard."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main

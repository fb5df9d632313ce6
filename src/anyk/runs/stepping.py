"""Custom training loops, which receive decoded gradients and take the steps."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from anyk.arrays import Array, Vector, lacks_gradient
from anyk.checks import AtLeastOne, check
from anyk.clusters.contract import Cluster
from anyk.codes import Code
from anyk.errors import BadInput, RunFailed, outside
from anyk.optimizers import STEPPED, Optimizer
from anyk.optimizers.steps import State
from anyk.problems.base import Problem, abilities_of, ensure_problem
from anyk.problems.torch.hooks import set_gradients
from anyk.problems.torch.module_partitions import dtype_of, pieces_of
from anyk.problems.torch.network import (
    copy_array,
    is_norm,
    kept_tensor,
    kept_tensors,
    parts_of,
    renewed_norms,
    trainable_parameters,
)
from anyk.problems.values import Values
from anyk.problems.watch import is_glanced_at
from anyk.protocol import Strategy
from anyk.runs.callbacks import Callback, Callbacks, RunInfo, StepInfo, StopRun, check_callbacks
from anyk.runs.defaults import with_usual_batch
from anyk.runs.engine.carried_values import CarriedValues
from anyk.runs.engine.driver import Driver
from anyk.runs.evaluation.evaluate import USUAL, Evaluate
from anyk.runs.folder.config import NAME, read_config
from anyk.runs.log.receipts import Receipt, receipt_after, receipt_of_step
from anyk.runs.run import Run
from anyk.runs.training import resume, train
from anyk.strategies import strategy as build_strategy

if TYPE_CHECKING:
    import torch


_COMPARED = 256  # numbers of a buffer that are compared after each step
_IDLE = 3  # steps without a change of the model, from which on the user is warned
_UNCHANGED = (
    "no step of this loop has changed a parameter of the module: its optimiser does not step, is one of other "
    "parameters or has a learning rate of 0, or zero_grad() erases the gradient before it steps"
)
_LOST = (
    "{lost} gradients before this step were used by no step of an optimiser: each round writes a new gradient, and "
    "adds nothing to the last one; accumulate=4 gives the loop the mean gradient of 4 rounds"
)


@dataclass
class Step:
    """A decoded gradient of the objective and the model that the loop changes with it, both of shape (d,).

    ``number`` counts from 0. ``scale`` is the strategy's factor on the learning rate, such as less than 1 for stale
    gradients; of accumulated gradients it is 1, as each is multiplied by its own factor. ``values``: the problem's
    values, by name, which travel with the model. ``model`` and ``values`` at the end of the loop's body, or when the
    loop is left, are the next version's.
    """

    number: int
    gradient: Vector
    model: Vector
    scale: float
    values: dict[str, Any]
    _receipt: Callable[[int], Receipt] = field(repr=False, compare=False)
    _rounds: int = field(default=1, repr=False, compare=False)
    _kept: dict[int, Array] = field(default_factory=dict, repr=False, compare=False)  # changed buffers, by place

    @cached_property
    def receipts(self) -> tuple[Receipt, ...]:
        """The receipt of each round whose gradient is in the step, when this is first read."""
        return tuple(self._receipt(self.number * self._rounds + place + 1) for place in range(self._rounds))

    @property
    def receipt(self) -> Receipt:
        """The weights of the partitions, and the workers that were cut off; of several rounds the last one's."""
        return self.receipts[-1]


@dataclass(frozen=True)
class _HandOver(Optimizer):
    """An optimiser whose steps are taken by the user's loop, one for the mean gradient of ``accumulate`` rounds."""

    name = STEPPED
    rounds: Any = None
    accumulate: int = 1

    @property
    def spec(self) -> str:
        return self.name

    def start(self, w: Vector) -> State:
        """Return the sum of the gradients that the loop has not received yet."""
        return {} if self.accumulate == 1 else {"sum": np.zeros_like(w)}

    def step(
        self, w: Vector, gradient: Vector, state: State, t: int, scale: float = 1.0, out: Vector | None = None
    ) -> Vector:
        if self.accumulate > 1:
            state["sum"] += scale * gradient
            if (t + 1) % self.accumulate:
                out = np.empty_like(w) if out is None else out
                out[:] = w
                return out
            gradient, scale = state["sum"] / self.accumulate, 1.0
            state["sum"][:] = 0.0
        # copies, as the user may store both
        model = self.rounds.hand_over(t // self.accumulate, gradient.astype(w.dtype), w.copy(), scale)
        if np.shape(model) != w.shape:
            raise BadInput(f"step.model must stay a vector of {w.size:,} numbers, got shape {np.shape(model)}")
        out = np.empty_like(w) if out is None else out
        out[:] = model
        return out


@dataclass(eq=False)
class _Loop(Callback):
    """The callback by which a run reports to the user's loop and stores the loop's state in checkpoints."""

    _keep: tuple[Any, ...]
    _accumulate: int = 1
    driver: Driver | None = None
    over: bool = False
    kept: dict[int, Array] = field(default_factory=dict)  # with which the first version travels, by place

    def on_begin(self, info: RunInfo) -> None:
        self.driver = info.driver
        carried = info.driver.versions.carried
        if carried is not None:
            carried.rounds = self._accumulate
            carried.change(None, self.kept)

    def on_step(self, info: StepInfo) -> None:
        if self.over:
            raise StopRun(f"the loop was left at step {info.step}")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each of the user's objects, and how many rounds are accumulated."""
        return {"accumulate": self._accumulate, "keep": [each.state_dict() for each in self._keep]}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the user's objects."""
        if saved["accumulate"] != self._accumulate:
            raise BadInput(
                f"the run accumulates {saved['accumulate']} rounds for each step, got accumulate={self._accumulate}; "
                "give the same"
            )
        states = saved["keep"]
        if len(states) != len(self._keep):
            raise BadInput(
                f"the run stores the states of {len(states)} objects, keep has {len(self._keep)}; give the same"
            )
        for each, state in zip(self._keep, states, strict=True):
            each.load_state_dict(state)


@dataclass(eq=False, repr=False)
class SteppedRounds:
    """The steps of a run, taken by the loop that iterates over them; the result of :func:`rounds`."""

    _problem: Problem
    _start: Callable[..., Run]
    _into: Any
    _loop: _Loop
    _callbacks: Callbacks
    _resumed: Path | None  # the folder of the run that continues
    _last: int | None  # the number of steps, if it is limited
    _accumulate: int = 1
    _waiting: bool = False  # whether the run waits for the loop's next model
    _steps: SimpleQueue[Step | None] = field(default_factory=SimpleQueue)
    _ends: SimpleQueue[None] = field(default_factory=SimpleQueue)
    _started: bool = False
    _run: Run | None = None
    _error: BaseException | None = None
    _parameters: list[Any] = field(default_factory=list)  # the module's, that are trained
    evaluates: bool = False  # whether an optimiser evaluates a closure, which need not change the model each time

    @property
    def run(self) -> Run:
        """The :class:`~anyk.runs.Run` after the loop has ended; raises the exception with which it failed."""
        if self._error is not None:
            raise self._error
        if self._run is None:
            raise BadInput("the run is available after the loop has ended")
        return self._run

    def __iter__(self) -> Iterator[Step]:
        if self._started:
            raise BadInput("rounds can be iterated only once; create new ones: anyk.rounds(…), with a new cluster")
        self._started = True
        check_unchanged = abilities_of(self._problem).check_unchanged
        if check_unchanged is not None:
            remarks = check_unchanged(begins=self._resumed is None)
            for remark in remarks if self._into is None else ():  # the loop's module is what it begins with
                warnings.warn(remark, RuntimeWarning, stacklevel=outside())
        statistics = kept = watched = None
        if self._into is not None:
            self._parameters = trainable_parameters(self._into)
            watched = _WatchedSteps(self._parameters)
            statistics = _Statistics(self._into, self._problem)
            kept = _KeptTensors.of(self._into, self._problem)
        if kept is not None:
            self._loop.kept = kept.changes({})
        make_watch = abilities_of(self._problem).watch_code
        watch = None if make_watch is None else make_watch()
        # a daemon, so that a script may end in the middle of its loop; workers end with the driver
        thread = threading.Thread(target=self._train, name="anyk rounds", daemon=True)
        thread.start()
        try:
            first = self._resumed is not None
            said = not first
            # the number of steps without a change of the model; None after a change
            idle = 0 if not first and self._into is not None else None
            lost = 0  # gradients in a row that no step has used
            while (step := self._steps.get()) is not None:
                if not said:
                    said = True
                    self._say_where(step.number)
                if self._into is not None:
                    self._check_frozen()
                if watch is not None:
                    if _is_power_of_two(step.number) or step.number + 1 == self._last:
                        watch.check()
                    elif is_glanced_at(step.number):
                        watch.glance()
                if self._into is not None:
                    if first:
                        _put_model(self._parameters, step.model)
                        if kept is not None:
                            kept.restore(self._carried.arrays)
                        first = False
                    self._set_gradients(step.gradient)
                    before = step.model.copy()  # the body may change it in place
                    nonzero = bool(step.gradient.any())  # zero_grad() may change it in place
                    counted = 0 if watched is None else watched.steps
                try:
                    yield step
                finally:  # the step at which the loop is left counts
                    if self._into is not None:
                        step.model = _vector(self._parameters)
                        if kept is not None:
                            step._kept = kept.changes(self._carried.arrays, check=_is_power_of_two(step.number + 1))
                        unused = (watched is None or watched.steps == counted) and np.array_equal(before, step.model)
                        if idle is not None:
                            idle = idle + nonzero if np.array_equal(before, step.model) else None
                        if lost and not unused:
                            warnings.warn(_LOST.format(lost=lost), RuntimeWarning, stacklevel=outside())
                        lost = lost + nonzero if unused and not self.evaluates else 0
                self._ends.put(None)
        finally:
            self._loop.over = True
            self._ends.put(None)
            thread.join()
            if first and self._into is not None and self._run is not None:  # the resumed run had no step left
                _put_model(self._parameters, self._run.model)
            if watched is not None:
                watched.close()
            if statistics is not None:
                statistics.close()
            if idle is not None and idle >= _IDLE and self._error is None:
                warnings.warn(_UNCHANGED, RuntimeWarning, stacklevel=outside())
        if self._error is not None:
            raise self._error

    def _set_gradients(self, gradient: Vector) -> None:
        """Give the module's parameters their gradients as torch does, so that it calls their hooks."""
        unused = abilities_of(self._problem).unused_parameters
        with_gradient = []
        for place, (parameter, piece) in enumerate(_pieces(self._parameters, gradient)):
            parameter.grad = None
            if parameter.requires_grad and not lacks_gradient(piece.numpy(), unused=place in unused):
                with_gradient.append((parameter, piece.to(parameter.device)))
        set_gradients(*zip(*with_gradient, strict=True))

    def _check_frozen(self) -> None:
        """Raise if the loop trains a parameter that was frozen or another one when it began."""
        own = set(map(id, self._parameters))
        parameters = dict(self._into.named_parameters())
        replaced = len(own - set(map(id, parameters.values())))
        for name, parameter in parameters.items():
            if parameter.requires_grad and id(parameter) not in own:
                if replaced:
                    raise BadInput(
                        f"parameter '{name}' is another object than when the loop began, and what the loop trains are "
                        "those of then: write into them under torch.no_grad(), or begin a loop with the new module"
                    )
                raise BadInput(
                    f"parameter '{name}' was frozen when the loop began, so that workers compute no gradient for it; "
                    "make the problem while it is trainable, and freeze it before the first step (in the loop's body "
                    "parameters may be frozen, and trained again)"
                )

    def _say_where(self, number: int) -> None:
        """Report on standard error where a resumed loop continues."""
        where = f"continues at step {number:,}"
        if not number:
            where = "had no checkpoint yet, and begins again at step 0"
        print(f"anyk: the run in '{self._resumed}' {where}", file=sys.stderr, flush=True)

    @property
    def _carried(self) -> CarriedValues:
        assert self._loop.driver is not None and self._loop.driver.versions.carried is not None
        return self._loop.driver.versions.carried

    def hand_over(self, number: int, gradient: Vector, model: Vector, scale: float) -> Vector:
        """Pass a step to the loop and return the model that the loop makes; called in the run's thread."""
        if self._loop.over:
            raise RunFailed("the loop was left while it waited for a gradient")
        driver = self._loop.driver
        assert driver is not None
        carried = driver.versions.carried
        values = {} if carried is None else carried.values
        step = Step(
            number=number,
            gradient=gradient,
            model=model,
            scale=scale,
            values=dict(values),
            _receipt=self.receipt,
            _rounds=self._accumulate,
        )
        self._waiting = True
        self._steps.put(step)
        self._ends.get()
        self._waiting = False
        if carried is not None:
            carried.change(step.values, step._kept)
        elif step.values:
            raise BadInput(f"the problem has no values, got {', '.join(step.values)}; name them in values= of it")
        return step.model

    def receipt(self, version: int) -> Receipt:
        """Return the receipt of a version, which may be the one that the loop is making."""
        driver = self._loop.driver
        assert driver is not None
        slot = driver.strategy.layout.slots[0]
        if self._run is not None:
            return self._run.receipt(version)
        if self._waiting:  # the run's thread does not use the log meanwhile
            making = driver.versions[slot] + 1 == version
            receipt = receipt_of_step(driver) if making else receipt_after(driver, slot, version)
            if receipt is not None:
                return receipt
        raise BadInput(f"ask for the receipt of step {version} in the loop's body, or of the run after the loop")

    def _train(self) -> None:
        try:
            optimizer = _HandOver(rounds=self, accumulate=self._accumulate)
            self._run = self._start(optimizer=optimizer, callbacks=self._callbacks)
        except BaseException as error:
            self._error = error
        finally:
            self._steps.put(None)


def _is_power_of_two(number: int) -> bool:
    return number.bit_count() == 1


class _KeptTensors:
    """The frozen parameters and buffers of a loop's module, which travel to the workers when the loop renews them."""

    def __init__(self, module: torch.nn.Module, values: Values, norms: Sequence[str]) -> None:
        self._module, self._values = module, values
        self._first = len(values.initial.arrays) - len(values.kept)
        tensors = list(kept_tensors(module, norms).values())
        self._forms = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        if [shape for shape, _ in self._forms] != [array.shape for array in values.initial.arrays[self._first :]]:
            raise BadInput(
                "the module's frozen parameters and buffers are not those of the problem's module; make the problem of "
                "this module"
            )
        # the tensors of the last call are kept alive: the memory of another one may have the same address
        self._seen: list[tuple[Any, Any]] = [(None, None)] * len(tensors)

    @classmethod
    def of(cls, module: torch.nn.Module, problem: Problem) -> _KeptTensors | None:
        """Return the tensors, None if there are none."""
        values = abilities_of(problem).changing_values
        kept = None if values is None else cls(module, values, abilities_of(problem).moving_norms)
        return kept if kept is not None and kept._forms else None

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that the module has now: the loop may have assigned others to their names."""
        for name, (shape, dtype) in zip(self._values.kept, self._forms, strict=True):
            tensor = kept_tensor(self._module, name)
            if tensor is None or (tuple(tensor.shape), tensor.dtype) != (shape, dtype):
                now = "is missing" if tensor is None else f"is {tensor.dtype} {tuple(tensor.shape)}"
                raise BadInput(
                    f"{name} of the module was {dtype} {shape} when the loop began and {now} now; what travels to the "
                    "workers keeps its shape and type"
                )
            yield tensor

    def changes(self, sent: Mapping[int, Array], *, check: bool = False) -> dict[int, Array]:
        """Return the tensors that were renewed since the last call, by their places among all arrays.

        Torch counts changes in place, except through ``.data``; so a sample of the numbers is compared as well.
        ``sent``: the arrays that workers have, if not the initial ones. ``check``: compare all numbers, and raise
        :class:`~anyk.errors.BadInput` if a tensor has changed without being noticed.
        """
        changes: dict[int, Array] = {}
        for place, tensor in enumerate(self._tensors(), self._first):
            mark = _mark_of(tensor)
            last, last_mark = self._seen[place - self._first]
            same = tensor is last and mark == last_mark
            self._seen[place - self._first] = tensor, mark
            if same and not check:
                continue
            array = Values.plain({"": tensor})[""]
            there = sent.get(place, self._values.initial.arrays[place])
            if array.tobytes() == there.tobytes():
                continue
            if same:
                raise BadInput(
                    f"{self._values.array_name(place)} of the module has changed through .data, which went unnoticed: "
                    "change it by its own methods under torch.no_grad(), so that it travels to the workers"
                )
            changes[place] = array
        return changes

    def restore(self, sent: Mapping[int, Array]) -> None:
        """Set the tensors to the arrays that workers have."""
        for place, tensor in enumerate(self._tensors(), self._first):
            if place in sent:
                copy_array(sent[place], tensor.detach())


def _mark_of(tensor: torch.Tensor) -> Any:
    """Return the number of torch's changes to a tensor, and some of its numbers."""
    flat = tensor.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // _COMPARED)]
    return tensor._version, tensor.data_ptr(), Values.plain({"": sample})[""].tobytes()


class _Buffers(dict[str, Any]):
    """The buffers of a module, computed before they are read; a copy is a plain dictionary."""

    def __init__(self, buffers: Mapping[str, Any], compute: Callable[[], None]) -> None:
        super().__init__(buffers)
        self._compute = compute

    def __getitem__(self, name: str) -> Any:
        self._compute()
        return super().__getitem__(name)

    def items(self) -> Any:
        self._compute()
        return super().items()

    def values(self) -> Any:
        self._compute()
        return super().values()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)

    def copy(self) -> dict[str, Any]:
        return dict(self.items())


class _Statistics:
    """Computes the running statistics of batch norms in the module whose parameters a loop changes.

    Workers do not compute them, and they take a pass over the training data. So they are computed only when they are
    read, by whatever means, and at the end of the loop. In a copy of the module the instance of this class has no
    module and does nothing.
    """

    def __init__(self, module: torch.nn.Module | None = None, problem: Any = None) -> None:
        self._module, self._problem = module, problem
        self._parameters = [] if module is None else trainable_parameters(module)
        self._computed: tuple[Vector, Sequence[torch.nn.Module]] | None = None
        self._names = () if module is None else abilities_of(problem).moving_norms
        self._norms = [] if module is None else parts_of(module, self._names)
        # torch.compile reads buffers without asking their dictionary
        self._hooks = [norm.register_forward_pre_hook(self._before_forward) for norm in self._norms]
        for norm in self._norms:
            norm._buffers = _Buffers(norm._buffers, self._compute)

    def _before_forward(self, norm: torch.nn.Module, _: Any) -> None:
        if not norm.training:
            self._compute()

    def _compute(self, *_: Any) -> None:
        if self._module is None or not self._norms:
            return
        w = _vector(self._parameters)
        if self._computed is None or not np.array_equal(self._computed[0], w):
            self._computed = w, parts_of(self._problem.module_at(w), self._names)
        for norm, computed in zip(self._norms, self._computed[1], strict=True):
            for name, value in computed._buffers.items():
                dict.__getitem__(norm._buffers, name).copy_(value)

    def close(self) -> None:
        """Compute the statistics of the final parameters, and remove the hooks."""
        try:
            self._compute()
        finally:
            for hook in self._hooks:
                hook.remove()
            for norm in self._norms:
                norm._buffers = dict(dict.items(norm._buffers))

    def __reduce__(self) -> tuple[Any, ...]:
        self._compute()
        return _Statistics, ()


@dataclass(eq=False)
class _WithInitial:
    """A problem with another initial model."""

    _problem: Problem
    _w: Vector
    hooked_parameters = ()  # torch calls the hooks when the loop's gradients are set

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # requested by pickle while there is no problem yet
            raise AttributeError(name)
        return getattr(self._problem, name)

    def initial(self) -> Vector:
        return self._w


def rounds(
    problem: Problem,
    strategy: Strategy | Code | str,
    cluster: Cluster,
    *,
    steps: int | None = None,
    seconds: float | None = None,
    into: torch.nn.Module | None = None,
    accumulate: int = 1,
    out: str | Path | None = None,
    go_on: bool = False,
    keep: Any = (),
    evaluate: Evaluate | str | None = USUAL,
    checkpoint_every: float = 10.0,
    callbacks: Sequence[Any] = (),
) -> SteppedRounds:
    """Return gradients for a custom training loop: ``for step in anyk.rounds(…)``.

    Each :class:`Step` has the decoded gradient of the objective (regulariser included) and the model, which the loop
    changes in place or assigns.

    ``into``: a PyTorch module whose trainable parameters are the problem's. The run starts with the module's
    parameters, gradients are written to their ``grad`` (not added: ``zero_grad`` is not needed, and before the step it
    would erase them), and the parameters at the end of the loop's body are the next version. So an existing script
    keeps its optimiser, its scheduler and its clipping. Buffers and frozen parameters that the loop changes
    travel to the workers. Running statistics of batch norm are the exception: as after :func:`anyk.train`,
    they are computed over the training data, whenever they are read, and at the end of the loop.

    ``accumulate``: the number of rounds for each step of the loop, which receives the mean of their gradients, as a
    PyTorch loop that calls ``backward`` for each of as many mini-batches and divides the loss by their number. The
    model stays the same in between. ``steps`` counts steps of the loop; the run's own steps are rounds. Rounds after
    the last step of the loop, where seconds end the run, do not count.

    ``out``: a run folder with checkpoints, as for :func:`anyk.train`. With ``go_on`` a run in it is resumed, so that
    the same script can be started again after it was killed; a line on standard error says at which step it continues.
    The first checkpoint is written after a second at most. ``keep``: the loop's optimiser, schedulers, or other
    objects with ``state_dict`` and ``load_state_dict``. Their states are part of the checkpoints and are restored
    before the first step, as are the parameters of ``into``. Other states of the loop are not saved.

    Limits, ``evaluate`` and ``callbacks`` are as in :func:`anyk.train`. Leaving the loop early, also by an
    exception, ends the run with that step. Afterwards the attribute ``run`` of the result is the run.

    Raises :class:`~anyk.errors.BadInput` for strategies whose workers take the steps (local updates) or that train
    several models, and if the module's parameters or batch norms are not the problem's. The loop raises the exception
    with which the run fails.

    >>> import anyk
    >>> problem = anyk.problems.from_data("synthetic:rows=60,features=3")
    >>> loop = anyk.rounds(problem, "frc:load=2", anyk.clusters.Simulated(workers=4), steps=20)
    >>> for step in loop:
    ...     step.model -= 0.5 * step.gradient
    >>> loop.run.steps, bool(loop.run.loss < problem.loss(problem.initial()))
    (20, True)
    """
    ensure_problem(problem)
    check(cluster, Cluster, "cluster")
    built = with_usual_batch(problem, build_strategy(strategy, workers=cluster.workers), strategy)
    if built.layout.inner is not None:
        raise BadInput(f"under '{built.spec}' workers take the steps: there are no gradients to hand out")
    if len(built.layout.slots) > 1:
        raise BadInput(f"'{built.spec}' trains {len(built.layout.slots)} models; a custom loop trains one")
    if into is not None:
        problem = _WithInitial(problem, _matching(into, problem))
    check(accumulate, AtLeastOne, "accumulate")
    if accumulate > 1 and not built.layout.minibatches:
        raise BadInput(
            f"accumulate={accumulate} adds up the gradients of mini-batches, and '{built.spec}' computes with all data "
            "in each round; give the strategy batch=…, or leave accumulate out"
        )
    if go_on and out is None:
        raise BadInput("go_on resumes the run in a folder; give out=…")
    start = partial(train, problem, built, cluster, out=out)
    resumed = Path(out) if go_on and out is not None and (Path(out) / NAME).exists() else None
    if resumed is not None and out is not None:
        _check_same(Path(out), built, cluster)
        start = partial(resume, Path(out), problem=problem)
    most = steps * accumulate if isinstance(steps, int) else steps
    start = partial(start, steps=most, seconds=seconds, evaluate=evaluate, checkpoint_every=checkpoint_every)
    loop = _Loop(_with_states(keep), accumulate)
    listeners = Callbacks((*check_callbacks(callbacks), loop))
    return SteppedRounds(
        _problem=problem,
        _start=start,
        _into=into,
        _loop=loop,
        _callbacks=listeners,
        _resumed=resumed,
        _last=steps,
        _accumulate=accumulate,
    )


def _with_states(keep: Any) -> tuple[Any, ...]:
    """Return the user's objects whose states are saved; raise if an object has no state."""
    stateful = tuple(keep) if isinstance(keep, (list, tuple)) else (keep,)
    for item in stateful:
        if isinstance(item, type) or not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise BadInput(
                "keep must be objects with state_dict and load_state_dict, such as optimisers and schedulers of "
                f"PyTorch, got {item!r}"
            )
    return stateful


def _check_same(folder: Path, strategy: Strategy, cluster: Cluster) -> None:
    """Raise :class:`~anyk.errors.BadInput` if the run in a folder has another strategy or cluster than the loop."""
    config = read_config(folder)
    before = build_strategy(config.strategy, workers=config.workers).spec
    for name, stored, requested in (
        ("strategy", before, strategy.spec),
        ("cluster", config.cluster, cluster.spec),
        ("workers", config.workers, cluster.workers),
    ):
        if stored != requested:
            raise BadInput(
                f"the run '{folder}' has the {name} '{stored}', the loop '{requested}'; give the same, or another out"
            )


def _matching(module: torch.nn.Module, problem: Problem) -> Vector:
    """Return the module's trainable parameters, shape (d,); raise if they are not the problem's."""
    if not hasattr(module, "parameters"):
        raise BadInput(f"into must be a PyTorch module, got {type(module).__name__}")
    parameters = trainable_parameters(module)
    dtype, shapes = dtype_of(parameters), [tuple(parameter.shape) for parameter in parameters]
    w = _vector(parameters)
    if w.size != problem.dimension:
        raise BadInput(f"the module has {w.size:,} trainable parameters, the problem {problem.dimension:,}")
    if abilities_of(problem).shapes not in (None, shapes):
        raise BadInput("the module's parameters have other shapes than the problem's; make the problem of this module")
    if dtype != problem.dtype:
        raise BadInput(f"the module's parameters are {dtype}, the problem's {problem.dtype}; they must be the same")
    renewed = renewed_norms(module)
    if renewed and abilities_of(problem).module_at is None:
        raise BadInput(
            f"the module has {len(renewed)} batch norms with running statistics, which only a TorchProblem can "
            "compute; use one, or give them track_running_stats=False"
        )
    with_statistics = {name for name, part in module.named_modules() if is_norm(part) and part.running_mean is not None}
    if not set(abilities_of(problem).moving_norms) <= with_statistics:
        raise BadInput("the module's batch norms are not the problem's; make the problem of this module")
    return w


def _vector(parameters: Sequence[torch.nn.Parameter]) -> Vector:
    """Return parameters as a vector, shape (d,)."""
    w: Vector = np.concatenate([parameter.detach().cpu().numpy().reshape(-1) for parameter in parameters])
    return w


def _pieces(
    parameters: Sequence[torch.nn.Parameter], vector: Vector
) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    """Return the parameters, each with its piece of a vector."""
    import torch

    pieces = pieces_of(torch.from_numpy(vector), [tuple(parameter.shape) for parameter in parameters])
    return zip(parameters, pieces, strict=True)


def _put_model(parameters: Sequence[torch.nn.Parameter], w: Vector) -> None:
    for parameter, piece in _pieces(parameters, w.copy()):
        parameter.detach().copy_(piece)


class _WatchedSteps:
    """Refuses optimisers that compute gradients themselves, while a loop hands them out.

    Also counts the steps of the module's optimisers.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._own, self.steps = set(map(id, parameters)), 0
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        if not any(id(parameter) in self._own for group in optimizer.param_groups for parameter in group["params"]):
            return
        self.steps += 1
        closures = [*arguments[1:], options.get("closure")]  # the first is the optimiser itself
        if any(closure is not None and not _is_round(closure) for closure in closures):
            raise BadInput(
                f"the closure of {type(optimizer).__name__}.step(closure) computes gradients here, not on the cluster; "
                "call step() without one, or use anyk.torch.Optimizer, where each evaluation of a closure is a round"
            )

    def close(self) -> None:
        self._hook.remove()


def _is_round(closure: object) -> bool:
    return getattr(closure, "is_round", False)

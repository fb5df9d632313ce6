"""Streams: the same samples wherever and whenever a mini-batch is computed, and nothing opened by the driver."""

from itertools import count

import cloudpickle
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import anyk
from anyk import BadInput, RunFailed
from anyk.clusters.messages import Messages
from anyk.data import Stream
from anyk.problems import JaxProblem, LeastSquares, LogisticRegression, TorchProblem, TwoLayerNetwork
from anyk.problems.data import streams
from anyk.problems.digests import data_digest
from anyk.problems.linear.scaling import Scaling
from anyk.protocol import Chunk

TRUE = np.array([1.0, -2.0, 0.5], dtype=np.float32)
HERE = []  # partitions and seeds, as drawn in this process


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """A process that draws the first samples would import torch for two seconds."""

    def inline(work, pieces):
        work = cloudpickle.loads(cloudpickle.dumps(work))
        gradients = [work(piece) for piece in pieces]
        HERE.clear()
        return gradients

    monkeypatch.setattr(streams, "map_in_processes", inline)


def make(partition, seed):
    """Rows x and targets x.TRUE, shifted by the partition; every other one is drawn from a global generator."""
    HERE.append((partition, seed))
    random = np.random.default_rng(seed)
    for i in count():
        x = random.standard_normal(3) if i % 2 else torch.randn(3).numpy()
        x = x.astype(np.float32)
        yield x, np.float32(x @ TRUE + partition)


def linear():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))


def of_torch(data=None, **options):
    return TorchProblem(linear(), torch.nn.MSELoss(), data or Stream(make), **options)


def jax_loss(params, batch):
    x, y = batch
    return jnp.mean((x @ params[:3] + params[3] - y) ** 2)


def of_jax(data=None, **options):
    return JaxProblem(jax_loss, np.ones(4, np.float32), data or Stream(make), **options)


def of_linear(data=None, **options):
    options = {"intercept": True} | options
    return LeastSquares(*(data if isinstance(data, tuple) else [data or Stream(make)]), **options)


def classes(partition, seed):
    """Numbers of very different sizes, and a label that is 5 where they are large, else 2."""
    random = np.random.default_rng(seed)
    while True:
        x = random.standard_normal(2) * [1.0, 1000.0] + [0.0, 500.0]
        yield x, 5 if x[0] + x[1] / 1000 > 0.5 else 2


@pytest.mark.slow
@pytest.mark.parametrize("problem", [of_torch, of_jax, of_linear])
def test_a_gradient_is_that_of_the_first_samples_under_the_seed(problem):
    stream_problem = problem()
    parts, w = stream_problem.split(4), stream_problem.initial()
    parts.compare_replicas()
    assert HERE == []  # the driver draws nothing
    messages = Messages(parts, seed=3)
    chunk = Chunk((2,), (1.0,), batch=3)
    gradient = messages.partial_gradient(2, w, chunk, version=5) * 3 / parts.sizes[2]
    ((partition, seed),) = HERE
    assert (partition, seed < 2**32) == (2, True)
    copied = pickled(parts)
    np.testing.assert_array_equal(
        Messages(copied, seed=3).partial_gradient(2, w, chunk, version=5) * 3 / parts.sizes[2], gradient
    )
    with streams.preserved_generators([]) as generators:
        streams.seed_all(generators, seed)
        samples = [sample for sample, _ in zip(make(2, seed), range(3), strict=False)]
    x, y = (np.stack(column) for column in zip(*samples, strict=True))
    expected = problem((x, y))
    np.testing.assert_allclose(gradient, expected.split(1).partial_gradient(0, w), rtol=2e-4)
    for other in [(2, 6, 0), (3, 5, 0), (2, 5, 1)]:  # of another partition, version or repetition
        j, version, repeat = other
        HERE.clear()
        messages.partial_gradient(j, w, Chunk((j,), (1.0,), batch=3, repeat=repeat), version)
        assert HERE[0][0] == j and HERE[0][1] != seed


def pickled(parts):
    return cloudpickle.loads(cloudpickle.dumps(parts))


@pytest.mark.slow
def test_a_piece_takes_as_many_samples_of_each_of_its_partitions():
    for problem in (of_torch(), of_jax(), of_linear()):
        w, parts = problem.initial(), problem.split(4)
        HERE.clear()
        Messages(parts, together=True).gradient((1, 2), w, Chunk((1, 2), (1.0, 1.0), batch=3), 0)
        assert [partition for partition, _ in HERE] == [1, 2]


@pytest.mark.slow
def test_all_codes_learn_what_an_uncoded_run_learns(tmp_path):
    problem, sgd = of_torch(), anyk.optimizers.GD(lr=0.3)
    runs = [
        anyk.train(problem, spec, anyk.clusters.Simulated(4, delays="exp:mean=1", seed=1), steps=10, optimizer=sgd,
                   out=tmp_path / str(i))
        for i, spec in enumerate(["uncoded:batch=8", "cyclic:stragglers=1,batch=8"])
    ]  # fmt: skip
    w = runs[0].model
    np.testing.assert_allclose(w, [*TRUE, 1.5], atol=0.4)  # partitions count equally: their shifts' mean is 1.5
    np.testing.assert_allclose(runs[1].model, w, atol=1e-5)
    assert runs[0].loss is None
    assert str(anyk.replay(tmp_path / "1", problem=problem)).endswith("the same bits of model")
    further = anyk.resume(tmp_path / "0", problem=problem, steps=11)
    uninterrupted = anyk.train(problem, "uncoded:batch=8", anyk.clusters.Simulated(4, delays="exp:mean=1", seed=1), steps=11,
                       optimizer=sgd)  # fmt: skip
    np.testing.assert_array_equal(further.model, uninterrupted.model)


@pytest.mark.slow
def test_what_needs_an_end_takes_a_sample_or_is_refused():
    held_out = [(TRUE, np.float32(5.25))] * 3
    problem = of_torch(held_out=held_out)
    w = problem.initial()
    assert (problem.evaluated_on, problem.endless, problem.metric) == ("held_out", True, "mse")
    assert "a stream" in repr(problem)
    assert problem.metrics(w)["mse"] > 0
    assert of_jax(Stream(lambda j, seed: [(np.ones(3), np.float64(seed))])).samples == streams.SAMPLES
    some = problem.sampled(50)
    assert (some.samples, some.endless) == (50, False) and np.isfinite(some.loss(w))
    normed = TorchProblem(torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1), torch.nn.Flatten(0)),
                          torch.nn.MSELoss(), Stream(make))  # fmt: skip
    assert 0.8 < normed.module_at(normed.initial())[0].running_var.min() < 1.2
    cluster = anyk.clusters.Simulated(2)
    train = {"cluster": cluster, "steps": 1, "optimizer": anyk.optimizers.GD(lr=0.1)}
    one = of_jax()
    for refused, sentence in [
        (lambda: anyk.train(problem, "uncoded", **train), "no full batch; give the strategy a mini-batch"),
        (lambda: anyk.train(problem, "uncoded:batch=2,order=epoch", **train), "a stream, which has no epochs"),
        (lambda: problem.split(2).partial_gradient(0, w), "no full batch"),
        (lambda: anyk.train(one, "uncoded:batch=4", evaluate="on=train", **train), "whose loss can only be estimated"),
        (lambda: one.loss(one.initial()), "whose loss can only be estimated"),
        (lambda: of_torch(count=len), "count needs all training data"),
        (lambda: of_torch(split="dirichlet:alpha=1"), "leave split out"),
        (lambda: of_torch(held_out=Stream(make)), "held_out is evaluated as a whole"),
        (lambda: of_jax(held_out=Stream(make)), "held_out is evaluated as a whole"),
        (lambda: of_jax(workers="numpy"), "take arrays in memory"),
        (
            lambda: anyk.train(of_linear(), "uncoded:batch=4", cluster, steps=1),
            "no default learning rate is known for a",
        ),
        (lambda: of_linear().loss(np.zeros(4)), "whose loss can only be estimated"),
        (lambda: of_linear(standardize=True), "standardize needs a pass over the data"),
        (
            lambda: of_linear(scaling=Scaling(np.zeros(2), np.ones(2))),
            "one number for each of the 3 columns of the stream's samples",
        ),
        (lambda: of_linear(y=TRUE), "a stream brings its own rows and targets, as they come; leave y out"),
        (lambda: of_linear(X_test=Stream(make)), "held-out rows of a model on a stream are arrays"),
        (
            lambda: of_linear(X_test=np.ones((4, 2)), y_test=np.ones(4)),
            "X_test has 2 columns, the stream's samples 3; they must agree",
        ),
        (lambda: of_linear(Stream(lambda j, seed: [(np.ones((2, 2)), seed)])), r"got x of shape \(2, 2\)"),
        (
            lambda: of_linear(Stream(lambda j, seed: [(np.ones(2) * seed, 1.0, 2.0)])),
            "pairs .x, y., equally many numbers",
        ),
        (lambda: of_linear(Stream(lambda j, seed: [(np.array([seed, np.nan]), 1.0)])), "NaN or infinite"),
        (lambda: LogisticRegression(Stream(classes)), "which labels a stream has cannot be looked up; give classes"),
        (lambda: LogisticRegression(Stream(classes), classes=[1, 2]), r"labels that are not in classes: \[5.0\]"),
        (lambda: TwoLayerNetwork(Stream(classes), None), "a two-layer network is for data in memory"),
        (lambda: of_torch(make(0, 1)), "got generator; of samples that are iterated make an anyk.data.Stream"),
        (lambda: Stream(7), "make must be a function"),
        (lambda: of_jax(Stream(lambda j, seed: [])), "the stream of partition 0 has no samples"),
        (lambda: of_jax(Stream(lambda j, seed: [(np.ones(3), 1.0)] * 40)), "the same samples under every seed"),
        (lambda: of_torch(Unseeded()), "different samples when called again with the same seed"),
        (lambda: of_jax(Stream(lambda j, seed: 1 / 0)), "the stream of partition 0 fails: ZeroDivisionError"),
        (lambda: of_jax(Stream(lambda j, seed: iter([object()]))), "made of arrays, tensors and numbers, got object"),
        (lambda: of_jax(Stream(lambda j, seed: [np.full(2, seed), np.ones(1)])), "not all have the same form"),
    ]:
        with pytest.raises(BadInput, match=sentence):
            refused()


@pytest.mark.slow
def test_linear_models_learn_from_a_stream_and_predict(tmp_path):
    scaling = Scaling(np.array([0.0, 500.0]), np.array([1.0, 1000.0]))
    held_out = list(zip(*(sample for _, sample in zip(range(200), classes(0, 1), strict=False)), strict=True))
    problem = LogisticRegression(
        Stream(classes),
        classes=[2, 5],
        intercept=True,
        scaling=scaling,
        l2=0.01,
        X_test=np.stack(held_out[0]),
        y_test=held_out[1],
    )
    options = {"steps": 60, "optimizer": anyk.optimizers.GD(lr=3.0), "evaluate": "every=20,samples=300,on=train"}
    run = anyk.train(problem, "frc:stragglers=1,batch=16", "simulated", workers=4, out=tmp_path / "run", **options)
    assert run.metric["value"] > 0.99 and run.history["loss"][60] < 0.3 < run.history["loss"][0]
    assert run.predict([[2.0, 500.0], [-2.0, 500.0]]).tolist() == [5, 2]
    slopes = run.coefficients.weights[:, 0] * [1.0, 1000.0]
    assert slopes[0] == pytest.approx(slopes[1], rel=0.2) and slopes[0] > 1.0
    real = anyk.train(problem, "frc:stragglers=1,batch=16", "processes", workers=4, **options)
    np.testing.assert_array_equal(real.model, run.model)
    run.close()
    with pytest.raises(BadInput, match="evaluate where='driver' or 'aside'"):
        problem.split(2).check_partial_loss()
    some = problem.sampled(40)
    assert (some.samples, some.endless, len(some.y_test)) == (40, False, 40)


@pytest.mark.slow
def test_a_stream_that_ends_within_a_mini_batch_is_named():
    problem = of_jax(Stream(short))
    parts = problem.split(2)
    parts.partial_gradient(1, problem.initial(), np.arange(5))
    with pytest.raises(RunFailed, match="the stream of partition 1 ended after 5 samples, and a mini-batch takes 6"):
        parts.partial_gradient(1, problem.initial(), np.arange(6))


def short(partition, seed):
    return (sample for _, sample in zip(range(5), make(partition, seed), strict=False))


class Unseeded(torch.utils.data.IterableDataset):
    """Draws from a generator of its own."""

    def __iter__(self):
        random = np.random.default_rng()
        while True:
            yield random.standard_normal(3, dtype=np.float32), 0.0


class Iterated(torch.utils.data.IterableDataset):
    """Texts of different lengths, drawn from torch's generator."""

    def __iter__(self):
        while True:
            yield torch.randint(0, 7, (int(torch.randint(2, 5, ())),))


class Finite(torch.utils.data.IterableDataset):
    """The same samples in the same order, as read from a file."""

    def __iter__(self):
        return ((torch.full((3,), float(i)), 0.0) for i in range(40))


def test_a_finite_iterable_is_refused_with_what_works():
    with pytest.raises(
        BadInput, match=r"an anyk\.data\.Stream: .* the same samples under every seed.* as a list or a map"
    ):
        TorchProblem(torch.nn.Linear(3, 1), torch.nn.MSELoss(), Finite())


def test_an_iterable_data_set_is_seeded_as_items_are():
    def collate(items):
        return torch.nn.utils.rnn.pad_sequence(items, batch_first=True)

    module, other = torch.nn.Embedding(7, 1, padding_idx=0), of_torch()  # which draw
    before = torch.get_rng_state()
    problem = TorchProblem(
        module, lambda model, batch: model(batch).sum(), Iterated(), reduction="sum", collate_fn=collate
    )
    parts, w, rows = problem.split(3), problem.initial(), np.arange(9)
    gradient = parts.partial_gradient(1, w, rows)
    np.testing.assert_array_equal(gradient, pickled(parts).partial_gradient(1, w, rows))
    assert not np.array_equal(gradient, parts.partial_gradient(1, w, rows + 1))
    assert 0 < gradient.sum() <= 9 * 4
    parts.compare_replicas()
    loaded = pickled(parts)
    loaded.load([0])
    assert parts.tolerance > 0
    assert data_digest(problem) == data_digest(problem) != data_digest(other)
    assert torch.equal(torch.get_rng_state(), before)


def test_samples_come_from_another_process_as_they_are():
    samples = [
        torch.tensor(3.0, dtype=torch.bfloat16),
        torch.arange(6).reshape(2, 3).T,
        torch.zeros(0, 3),
        np.ones((2, 0), dtype=np.float32),
        [1, 2.5, "word"],
        (True, [np.arange(3)]),
        {"x": [torch.ones(2, dtype=torch.float16)]},
    ]
    for sample, read in zip(
        samples, streams._decode(streams._encode_samples(lambda partition, seed: samples, len(samples), 0)), strict=True
    ):
        assert type(read) is type(sample) and str(read) == str(sample)
        assert getattr(read, "dtype", None) == getattr(sample, "dtype", None)
    for wrong in (torch.ones(2, dtype=torch.complex64), torch.ones(2).to_sparse(), object(), None):
        with pytest.raises(anyk.BadInput, match="must be made of arrays, tensors and numbers, got"):
            streams._encode_samples(lambda partition, seed, wrong=wrong: [wrong], 1, 0)

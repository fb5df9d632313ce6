"""Puts three nodes of this machine through their failures and tells what held, a line of JSON a check; see test_nodes.py.

Started as three ranks, as ssh would: RANK=0 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=… python ranks.py
[names of checks, or 2/6: every sixth check, from the third on]
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import psutil
import zmq

import anyk
from anyk.clusters import Nodes, join_nodes
from anyk.clusters.nodes import nodes
from anyk.clusters.nodes.holders import Holders
from anyk.clusters.nodes.site import SiteEntry, signed, versions
from anyk.runs.callbacks import Watching
from anyk.testing import Squares

WORKERS, SPEC = 6, "frc:load=2"
NAMESPACES = os.environ.get("ANYK_NAMESPACES", "")  # the first letters of their names
failed: list[str] = []
restarted: list[subprocess.Popen[bytes]] = []


def tell(check: Callable[[], Any]) -> None:
    try:
        check()
        failure = ""
    except BaseException:
        failure = traceback.format_exc()
        failed.append(check.__name__)
    print(json.dumps([check.__name__, failure]), flush=True)


def train(cluster: Any = None, *, steps: int = 12, at: int = -1, do: Callable[[], Any] = list) -> Any:
    """Train on the nodes; ``do`` is called at a step."""
    done: list[int] = []

    def watch(driver: Any, evaluator: Any) -> None:
        if driver.step >= at >= 0 and not done:
            done.append(driver.step)
            do()

    cluster = cluster or Nodes(WORKERS, delays="exp:mean=0.02", seed=1)
    return anyk.train(Squares(6, 400_000), SPEC, cluster, steps=steps, callbacks=[Watching(watch)])


def below(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(process.pid for process in psutil.Process(pid).children(recursive=True))]


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE  # its parent has not looked yet
    return False


def over(pids: list[int], within: float = 15.0) -> None:
    until = time.monotonic() + within
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left, f"{left} of {pids} are still there"


def inside(rank: int) -> list[str]:
    """What a command begins with that is to run where a rank is; see namespaces.py."""
    return ["ip", "netns", "exec", f"{NAMESPACES}{rank}"] if NAMESPACES else []


def main() -> None:
    hub = join_nodes()
    expected = train(anyk.clusters.Processes(WORKERS)).model

    def agent(rank: int) -> int:
        return int(hub.nodes[rank].hello.pid)

    def same(run: Any) -> None:
        assert np.array_equal(run.model, expected), "the model is another one"

    def equal_bits_and_a_second_run() -> None:
        same(train())
        cluster = Nodes(WORKERS)
        same(train(cluster))
        same(train(cluster))
        assert {cluster.node_of(worker).rank for worker in range(WORKERS)} == {0, 1, 2}

    def torch_optimizer_and_rounds() -> None:
        import torch

        models = []
        for cluster, options in (("nodes", {}), ("processes", {"workers": 3})):
            torch.manual_seed(0)
            module = torch.nn.Linear(4, 2)
            X = torch.randn(60, 4)
            problem = anyk.problems.TorchProblem(module, torch.nn.CrossEntropyLoss(), (X, (X[:, 0] > 0).long()))
            adam = torch.optim.Adam(module.parameters(), lr=0.1)
            with anyk.torch.Optimizer(adam, problem, "frc:load=3", cluster, **options) as optimizer:
                for _ in range(4):
                    optimizer.step()
            models.append([parameter.detach().numpy().copy() for parameter in module.parameters()])
        assert all(map(np.array_equal, *models))
        loop = anyk.rounds(Squares(6), SPEC, Nodes(WORKERS), steps=4)
        for step in loop:
            step.model -= 0.5 * step.gradient
        assert loop.run.steps == 4

    def compressed_messages_and_mini_batches() -> None:
        problem = anyk.problems.from_data("synthetic:rows=120,features=9")
        for spec in ("compressed:of=(uncoded:batch=5),by=(top-k:share=0.5)", "tree:children=2", "pasgd:tau=2"):
            models = [
                anyk.train(problem, spec, cluster, workers=WORKERS, steps=3).model for cluster in ("nodes", "processes")
            ]
            assert np.array_equal(*models), spec

    def killed_worker() -> None:
        cluster = Nodes(WORKERS, delays="exp:mean=0.05", seed=1)
        run = train(cluster, at=3, do=lambda: os.kill(cluster.pids[4], signal.SIGKILL))
        same(run)

    def frozen_node() -> None:
        frozen: list[int] = []

        def freeze() -> None:
            frozen.extend(below(agent(1)))
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)

        cluster = Nodes(WORKERS, delays="exp:mean=0.1", seed=1)
        try:
            run = train(cluster, at=3, do=freeze)
            lost = run.ledger["lost"]
        finally:
            thaw()
        same(run)
        assert lost == 0, "a node that is stopped is not dead"
        same(train())  # it works again

    def link_down(seconds: float) -> Any:
        """Train while the link of node 2 is down for a while; return the run, when the link is up again."""

        def set_link(to: str) -> None:
            subprocess.run([*inside(2), "ip", "link", "set", "eth0", to], check=True)

        up = threading.Timer(seconds, set_link, ("up",))

        def down() -> None:
            set_link("down")
            up.start()

        run = train(at=3, do=down)
        up.join()
        return run

    def link_down_for_8_s() -> None:
        run, life = link_down(8.0), hub.nodes[2].life
        same(run)
        assert run.ledger["lost"] == 0
        same(train())
        assert hub.nodes[2].life == life, "it was not taken for dead"

    def link_down_for_50_s() -> None:
        life = hub.nodes[2].life
        same(link_down(50.0))
        same(train())
        assert hub.nodes[2].life != life, "it has joined again"

    def killed_agent() -> None:
        pids: list[int] = []

        def kill() -> None:
            pids.extend(below(agent(2)))
            os.kill(pids[0], signal.SIGKILL)

        run = train(at=3, do=kill, steps=12)
        same(run)
        over(pids)
        command = [*inside(2), sys.executable, *sys.argv]
        restarted.append(subprocess.Popen(command, env=os.environ | {"RANK": "2"}))
        joined = time.monotonic()
        same(train())  # it waits until the node is back
        assert agent(2) == restarted[0].pid, time.monotonic() - joined

    def killed_agent_of_the_driver() -> None:
        pids: list[int] = []

        def kill() -> None:
            pids.extend(below(agent(0)))
            os.kill(pids[0], signal.SIGKILL)

        same(train(at=3, do=kill))
        over(pids)
        same(train())

    def strangers() -> None:
        """Garbage on each port, a wrong key, and an entry that another secret signed: nothing changes."""
        control = f"{hub.site.place.host}:{hub.carrier.port}"
        addresses = [hub.nodes[1].hello.address, hub.carrier.address, control]
        context = zmq.Context()
        made: list[Any] = []

        def attack() -> None:
            place = hub.site.place
            with socket.create_connection((place.store_host, place.store_port), 5) as raw:
                raw.sendall(os.urandom(3000))
            for address in addresses:
                host, _, port = address.rpartition(":")
                with socket.create_connection((host, int(port)), 5) as raw:
                    raw.sendall(os.urandom(3000))
                plain = context.socket(zmq.DEALER)
                plain.linger = 0
                plain.connect(f"tcp://{address}")
                for frames in ([b"x"], [b"key", bytes(24)], [b"a"] * 9, [b""]):
                    plain.send_multipart(frames)
                made.append(plain)
            public, secret = zmq.curve_keypair()
            hub.site._store.set(f"anyk/node/{public.hex()}", b"0" * 64 + b' {"rank": 1}')
            other = context.socket(zmq.DEALER)
            other.linger = 0
            other.curve_serverkey = hub.carrier.key.encode()
            other.curve_publickey, other.curve_secretkey = public, secret
            other.setsockopt(zmq.IDENTITY, hub.nodes[1].life)
            other.connect(f"tcp://{control}")
            other.send(b"x")
            made.append(other)

        try:
            same(train(at=2, do=attack))
        finally:
            for each in made:
                each.close()
            context.term()
        reported("that is not of this job was not admitted")
        for address in addresses[1:]:  # the node reports what it hears itself
            reported(f"a connection to {address} did not say that it is of this job")
        reported(f"somebody sent {hub.carrier.address} what no node of this job sends")

    def reported(sentence: str, within: float = 15.0) -> None:
        until = time.monotonic() + within
        while not any(sentence in said for said in hub.said.sentences) and time.monotonic() < until:
            hub.poll(0.1)
        assert any(sentence in said for said in hub.said.sentences), (sentence, [*hub.said.sentences])

    def replaced_entries() -> None:
        """Rank 0's entry is replaced, by garbage and by that of a former job with the same secret: it is written again."""
        store, entry = hub.site._store, hub.entry
        former = SiteEntry(0, "k" * 40, "0" * 16, entry.versions, entry.size, entry.host, entry.port + 1)
        for value in (b"garbage", signed(hub.site.place.secret, "driver", msgspec.json.encode(former))):
            store.set("anyk/driver", value)
            same(train())
            until = time.monotonic() + 15
            while not hub.site.has(entry) and time.monotonic() < until:
                hub.poll(0.1)
            assert hub.site.has(entry)
        reported("somebody has removed rank 0's entry from the store at MASTER_ADDR, or written another one")

    def second_program_of_a_rank() -> None:
        """A second program with the rank of a node that is there ends with a line; the node goes on."""
        life, command = hub.nodes[1].life, [*inside(2), sys.executable, *sys.argv]
        second = subprocess.Popen(command, env=os.environ | {"RANK": "1"}, stderr=subprocess.PIPE, text=True)
        reported("a second program with RANK=1, at ", within=60.0)
        assert second.stderr is not None
        assert "another program with the same RANK is a node of this job" in second.stderr.read()
        assert second.wait(250) == 1
        same(train())
        assert hub.nodes[1].life == life

    def wrong_digests() -> None:
        """Bytes that were changed on their way are not used: the message has failed, and the worker is asked again."""
        reads, digested = hub.carrier.reads, []
        arrived = reads.arrived

        def changing(address: str, frames: Any) -> None:
            if len(digested) < 2 and address == hub.nodes[1].hello.address:
                digested.append(address)
                frames = [frames[0], bytes(len(frames[1]))]
            arrived(address, frames)

        reads.arrived = changing
        try:
            run = anyk.train(Squares(6, 400_000), "uncoded", Nodes(WORKERS), steps=4)
        finally:
            reads.arrived = arrived
        plain = anyk.train(Squares(6, 400_000), "uncoded", "simulated", workers=WORKERS, steps=4)
        assert np.allclose(run.model, plain.model, rtol=1e-12, atol=1e-12)
        assert digested
        events = run.log.rows("SELECT kind FROM events WHERE kind = 'Failed'")
        assert events, "no message has failed"

    def changed_data() -> None:
        """Data that were changed on their way are not unpickled: the run fails."""
        offers, changed = hub.carrier.offers, []
        put = offers.put

        def changing(key: bytes, data: memoryview) -> None:
            first = not changed
            changed.append(key)
            put(key, memoryview(b"!" * len(data)) if first else data)

        offers.put = changing
        try:
            train()
        except anyk.RunFailed as error:
            assert "the data that came does not match the driver's digests" in str(error)
        else:
            raise AssertionError("it trained")
        finally:
            del offers.put
        same(train())

    def fleet_that_changes() -> None:
        """A worker is drained and comes back, and a node dies; the others go on, and the node joins again."""
        cluster = Nodes(WORKERS, delays="constant:0.05")
        problem = anyk.problems.from_data("synthetic:rows=240,features=5")
        counts: list[int] = []

        def watch(driver: Any, evaluator: Any) -> None:
            if not counts or counts[-1] != len(driver.present):
                counts.append(len(driver.present))
                if counts == [6]:
                    cluster.drain([5])
                elif counts == [6, 5]:
                    cluster.drain([])
                elif counts == [6, 5, 6]:
                    os.kill(agent(0), signal.SIGKILL)
                elif counts[-1] == 6:
                    driver.end()

        run = anyk.train(problem, "uncoded", cluster, workers=(2, 6), seconds=100.0, callbacks=[Watching(watch)])
        assert counts[:3] == [6, 5, 6] and counts[-1] == 6 and min(counts[3:]) == 4, counts
        fixed = anyk.train(problem, "uncoded", "simulated", workers=6, partitions=24, steps=run.steps)
        np.testing.assert_allclose(run.model, fixed.model, rtol=0, atol=1e-12)

    def another_version() -> None:
        public, secret = zmq.curve_keypair()
        entry = SiteEntry(1, public.decode(), "f" * 16, versions() | {"NumPy": "0.1"}, 3)
        name = f"node/{public.hex()}"
        hub.site._store.set(f"anyk/{name}", signed(hub.site.place.secret, name, msgspec.json.encode(entry)))
        context = zmq.Context()
        other = context.socket(zmq.DEALER)
        other.linger = 0
        other.curve_serverkey = hub.carrier.key.encode()
        other.curve_publickey, other.curve_secretkey = public, secret
        other.connect(f"tcp://{hub.site.place.host}:{hub.carrier.port}")
        until = time.monotonic() + 10
        while not any("NumPy 0.1" in sentence for sentence in hub.said.sentences) and time.monotonic() < until:
            hub.poll(0.1)
        other.close()
        context.term()
        assert f"node 1 has NumPy 0.1, and the driver NumPy {np.__version__}" in " ".join(hub.said.sentences)

    def in_slices(spec: str, optimizer: Any, problem: Any = None, **options: Any) -> tuple[Any, Any]:
        """The runs on nodes that hold slices, and on processes."""
        problem = problem or Squares(6, 400_000)
        clusters = Nodes(WORKERS, slices="nodes", seed=1), anyk.clusters.Processes(WORKERS, seed=1)
        nodes, processes = (
            anyk.train(problem, spec, cluster, optimizer=optimizer, steps=4, evaluate=None, **options)
            for cluster in clusters
        )
        return nodes, processes

    def slices_have_the_bits_of_processes() -> None:
        """Models, digests, states of optimisers: with state, groups, outer optimisers, several models, stale messages."""
        import torch

        gd, *optimizers = [anyk.optimizers.optimizer(name, lr=0.1) for name in ("gd", "momentum", "adamw")]
        optimizers.append(anyk.optimizers.TorchOptimizer("RMSprop", lr=0.01, schedule="StepLR:step_size=2"))
        optimizers += [anyk.optimizers.Clip(of=of, norm=0.01) for of in optimizers[-2:]]
        cases = [(SPEC, optimizer) for optimizer in optimizers]
        cases += [(spec, gd) for spec in ("slowmo:tau=2", "dpsgd", SPEC, "tree:children=2", "m-sgc:B=1,W=2,lambda=2")]
        if not NAMESPACES:  # scripts/soak nodes tries all
            cases = cases[1:4] + cases[5:7]
        for spec, optimizer in cases:
            problem = Squares(24, 140_000 if spec == "dpsgd" else 400_000)
            nodes, processes = in_slices(spec, optimizer, problem)
            for slot, model in processes.models.items():
                assert np.array_equal(nodes.models[slot], model), (spec, optimizer.spec)
            digests = [run.log.rows("SELECT slot, version, digest FROM updates") for run in (nodes, processes)]
            assert digests[0] == digests[1] and len(digests[0]) >= 4
            if spec == SPEC:  # each slice of a message came from one of the two workers of its group
                receipt = nodes.receipt(2)
                for used, givers in zip(receipt.used, receipt.slices, strict=True):
                    assert len(givers) == 3 and {giver // 2 for giver in givers} == {used.worker // 2}, receipt
                assert set(processes.receipt(2).slices) == {()}
            states = [run.warm_start().states for run in (nodes, processes)]
            for slot, state in states[1].items():
                for name, vector in state.items():
                    found = states[0][slot][name]
                    assert np.array_equal(found, vector) and found.shape == vector.shape, name
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(500, 600), torch.nn.Tanh(), torch.nn.Linear(600, 2))
        groups = [
            {"params": module[0].parameters(), "lr": 0.1},
            {"params": module[2].parameters(), "weight_decay": 0.5},
        ]
        adam = torch.optim.AdamW(groups, lr=0.01)
        X = torch.randn(60, 500)
        for given in (module, module[2]):
            penalised = anyk.problems.TorchProblem(
                module, torch.nn.CrossEntropyLoss(), (X, (X[:, 0] > 0).long()), l2=0.1 if given is module else 0.0
            )
            nodes, processes = in_slices(SPEC, anyk.optimizers.TorchOptimizer(adam), penalised)
            assert np.array_equal(nodes.model, processes.model)

    def slices_step_behind_an_optimizer_of_torch() -> None:
        """Groups, a scheduler, learning rates set by hand, reading in between, and a resumed loop."""
        import tempfile

        import torch

        def state_of(optimizer: Any) -> list[Any]:
            state = optimizer.state_dict()["state"]
            return [state[number][name] for number in sorted(state) for name in sorted(state[number])]

        def script(cluster: str, *, clip: float | None, steps: int = 5, out: str | None = None) -> Any:
            torch.manual_seed(0)
            module = torch.nn.Sequential(torch.nn.Linear(500, 600), torch.nn.Tanh(), torch.nn.Linear(600, 2))
            X = torch.randn(60, 500)
            groups: list[Any] = [{"params": module[0].parameters(), "lr": 0.1}, {"params": module[2].parameters()}]
            adam = torch.optim.AdamW(groups, lr=0.01)
            module(X).square().sum().backward()
            adam.step()  # from which it goes on
            problem = anyk.problems.TorchProblem(module, torch.nn.CrossEntropyLoss(), (X, (X[:, 0] > 0).long()))
            schedule = torch.optim.lr_scheduler.StepLR(adam, 2, gamma=0.5)
            options: dict[str, Any] = {"out": out, "go_on": out is not None, "keep": [adam, schedule]}
            optimizer = anyk.torch.Optimizer(
                adam, problem, "frc:load=3", cluster, workers=3, clip=clip, evaluate=None, **options
            )
            seen: list[Any] = []
            with optimizer:
                number = -1
                while number + 1 < steps:
                    number = optimizer.step().number
                    schedule.step()
                    if number == 1:
                        if "slices" in cluster:
                            assert all(parameter.isnan().all() for parameter in module.parameters())
                            assert not adam.state
                        seen += [module(X[:2]).detach(), *module.state_dict().values()]
                        seen += state_of(adam)
                        seen = [tensor.clone() for tensor in seen]
                        adam.param_groups[1]["lr"] = 0.005
            final = [*module.state_dict().values()]
            final += state_of(adam)
            rates = [group["lr"] for group in adam.param_groups]
            return seen, final, rates, optimizer.run.log.rows("SELECT version, digest FROM updates")

        def equal(ones: Any, others: Any) -> bool:
            return len(ones) == len(others) and all(map(torch.equal, ones, others))

        for clip in (None, 0.05) if NAMESPACES else (0.05,):
            found, expected = script("nodes:slices=nodes", clip=clip), script("processes", clip=clip)
            assert equal(found[0], expected[0]) and found[0], "what was read in between"
            assert equal(found[1], expected[1]), "the end"
            assert found[2:] == expected[2:]
        with tempfile.TemporaryDirectory() as folder:
            script("nodes:slices=nodes", clip=0.05, steps=3, out=os.path.join(folder, "run"))
            resumed = script("nodes:slices=nodes", clip=0.05, out=os.path.join(folder, "run"))
            assert equal(resumed[1], expected[1]) and resumed[2] == expected[2]

    def slices_refuse_loops_that_want_the_gradient() -> None:
        import torch

        def optimizer(adam: Any, **options: Any) -> Any:
            return anyk.torch.Optimizer(adam, problem, SPEC, Nodes(WORKERS, slices="nodes"), **options)

        def change() -> None:
            with optimizer(adam()) as front:
                front.step()
                with torch.no_grad():
                    module.weight.zero_()
                front.step()

        def step_twice() -> None:
            made = adam()
            with optimizer(made) as front:
                front.step()
                made.step()

        def adam() -> Any:
            return torch.optim.Adam(module.parameters(), lr=0.1)

        module = torch.nn.Linear(4, 2)
        X = torch.randn(60, 4)
        problem = anyk.problems.TorchProblem(module, torch.nn.CrossEntropyLoss(), (X, (X[:, 0] > 0).long()))
        cases: list[tuple[Callable[[], Any], str]] = [
            (lambda: anyk.rounds(problem, SPEC, Nodes(WORKERS, slices="nodes"), steps=2), "anyk.rounds hands out"),
            (lambda: optimizer(adam(), prepare=print), "clip=1.0"),
            (lambda: optimizer(adam(), accumulate=2), "accumulate="),
            (lambda: optimizer(torch.optim.LBFGS(module.parameters())), "closure"),
            (lambda: optimizer(adam()).step(lambda: 0.0), "closure"),
            (change, "has changed parameters"),
            (step_twice, "call step() of anyk.torch.Optimizer"),
        ]
        for case, words in cases:
            try:
                case()
            except anyk.BadInput as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)

    def slices_are_saved_and_resumed_anywhere() -> None:
        import tempfile

        whole, adam = Squares(6, 400_000), anyk.optimizers.optimizer("adam", lr=0.1)
        with tempfile.TemporaryDirectory() as folder:
            expected = anyk.train(whole, SPEC, anyk.clusters.Processes(WORKERS), optimizer=adam, steps=9).model
            for name, other in (("a", "nodes"), ("b", "processes"), ("c", "nodes:slices=nodes")):
                out = os.path.join(folder, name)
                cluster = Nodes(WORKERS, slices="nodes")
                anyk.train(whole, SPEC, cluster, optimizer=adam, steps=4, out=out, checkpoint_every=0.01).close()
                run = anyk.resume(out, problem=whole, steps=9, cluster=other)
                assert np.array_equal(run.model, expected), other
                run.close()
            out = os.path.join(folder, "d")
            anyk.train(whole, SPEC, "processes", workers=WORKERS, optimizer=adam, steps=4, out=out).close()
            with anyk.resume(out, problem=whole, steps=9, cluster="nodes:slices=nodes") as run:
                assert np.array_equal(run.model, expected)

    def slices_outlive_workers_and_frozen_nodes() -> None:
        cluster = Nodes(WORKERS, slices="nodes", delays="exp:mean=0.05", seed=1)
        same(train(cluster, at=3, do=lambda: os.kill(cluster.pids[4], signal.SIGKILL)))
        frozen: list[int] = []

        def freeze() -> None:
            frozen.extend(below(agent(1)))
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            threading.Timer(3.0, lambda: [os.kill(pid, signal.SIGCONT) for pid in frozen]).start()

        same(train(Nodes(WORKERS, slices="nodes", seed=1), at=3, do=freeze))

    def slices_end_with_a_lost_node() -> None:
        pids: list[int] = []

        def kill() -> None:
            pids.extend(below(agent(0)))
            os.kill(pids[0], signal.SIGKILL)

        try:
            train(Nodes(WORKERS, slices="nodes", seed=1), at=3, do=kill)
        except anyk.RunFailed as error:
            assert "node 0 was lost with its slice of the model" in str(error), error
        else:
            raise AssertionError("it trained")
        over(pids)
        same(train(Nodes(WORKERS, slices="nodes", seed=1)))  # it is back

    def in_two_copies(steps: int, events: dict[int, Callable[[], Any]], **options: Any) -> tuple[Any, Any]:
        """Train with each slice at two nodes, with events at steps; return the run, and who held which slice at the end."""
        cluster = Nodes(WORKERS, slices="nodes", copies=2, seed=1, **options)
        left = dict(events)
        holders: list[Any] = []

        def watch(driver: Any, evaluator: Any) -> None:
            for step in [step for step in left if driver.step >= step]:
                left.pop(step)()
            holders[:] = [{number: sorted(ranks) for number, ranks in cluster._holders.placement.ranks.items()}]

        adam = anyk.optimizers.optimizer("adamw", lr=0.01)
        problem = Squares(6, 400_000)
        run = anyk.train(problem, SPEC, cluster, optimizer=adam, steps=steps, callbacks=[Watching(watch)])
        on_processes = anyk.train(problem, SPEC, anyk.clusters.Processes(WORKERS, seed=1), optimizer=adam, steps=steps)
        assert np.array_equal(run.model, on_processes.model), "the model is another one"
        digests = [each.log.rows("SELECT slot, version, digest FROM updates") for each in (run, on_processes)]
        assert digests[0] == digests[1] and len(digests[0]) >= steps
        states = [each.warm_start().states for each in (run, on_processes)]
        for slot, state in states[1].items():
            assert all(np.array_equal(states[0][slot][name], vector) for name, vector in state.items())
        return run, holders[0]

    def two_copies_outlive_a_killed_and_a_frozen_node() -> None:
        """One node dies, comes back and holds its slices again; then another one that held one of them is frozen."""
        killed: list[int] = []
        frozen: list[int] = []
        waited: list[bool] = []

        def kill() -> None:
            killed.extend(below(agent(0)))
            os.kill(killed[0], signal.SIGKILL)

        def freeze() -> None:
            frozen.extend(below(agent(1)))
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            late.start()

        def thaw() -> None:
            late.cancel()
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)

        late = threading.Timer(60.0, lambda: [waited.append(True), thaw()])
        events = {3: kill, 60: freeze, 70: thaw}  # no step is as far ahead of a copy that still counts
        _, held = in_two_copies(140, events, delays="exp:mean=0.06")
        over(killed)
        assert not waited, "the run waited for the frozen node"
        assert held == {0: [0, 1], 1: [1, 2], 2: [0, 2]}, held

    def slices_in_a_fleet_that_changes() -> None:
        """A node that joins late gets workers but no slice, and may die; a holder freezes and comes back, workers are drained."""
        cluster = Nodes(WORKERS, slices="nodes", copies=2, delays="constant:0.02", seed=1)
        frozen: list[int] = []
        suspended: set[tuple[int, int]] = set()
        suspend = Holders.suspend

        def note_and_suspend(holders: Holders, slice_number: int, rank: int) -> None:
            suspended.add((slice_number, rank))
            suspend(holders, slice_number, rank)

        def drain_and_freeze() -> None:
            cluster.drain([5])
            frozen.extend(below(agent(1)))
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            threading.Timer(3.0, lambda: [os.kill(pid, signal.SIGCONT) for pid in frozen]).start()

        # workers, who holds the slices (None: whoever does), what follows
        stages: list[tuple[int, list[list[int]] | None, Callable[[], Any]]] = [
            (6, [[1, 2], [1, 2]], drain_and_freeze),
            (5, [[1, 2], [1, 2]], lambda: cluster.drain([])),
            (6, [[1, 2], [1, 2]], lambda: os.kill(agent(0), signal.SIGKILL)),
            (4, None, lambda: None),
        ]
        left = [*stages]

        def watch(driver: Any, evaluator: Any) -> None:
            holders = [sorted(ranks) for ranks in cluster._holders.placement.ranks.values()]
            if left and len(driver.present) == left[0][0] and left[0][1] in (None, holders):
                left.pop(0)[2]()
            if not left:
                driver.end()

        while not {0, 1, 2} <= set(hub.nodes):
            hub.poll(0.1)
        os.kill(agent(0), signal.SIGKILL)
        problem = Squares(24, 200_000)
        with (
            mock.patch.object(nodes, "OTHERS", 0.0),  # nobody waits for the node
            mock.patch.object(Holders, "suspend", note_and_suspend),
        ):
            run = anyk.train(problem, "uncoded", cluster, workers=(2, 6), seconds=100.0, callbacks=[Watching(watch)])
        assert not left, (left[0], run.notes)
        assert suspended >= {(0, 1), (1, 1)}, suspended
        fixed = anyk.train(problem, "uncoded", "simulated", workers=6, partitions=24, steps=run.steps)
        np.testing.assert_allclose(run.model, fixed.model, rtol=0, atol=1e-12)

    def slices_refuse_what_they_cannot_do() -> None:
        problem = Squares(6, 3000)
        for spec, optimizer, words in (
            ("compressed:of=(uncoded),by=(top-k:share=0.5)", "gd", "compressed messages"),
            ("comm-efficient", "gd", "shorter than the model"),
            (SPEC, "torch:method=LBFGS", "LBFGS"),
            (SPEC, "torch:method=Adafactor", "steps all coordinates together"),
        ):
            try:
                in_slices(spec, anyk.optimizers.optimizer(optimizer, lr=0.1), problem)
            except anyk.BadInput as error:
                assert words in str(error), error
            else:
                raise AssertionError(spec)

    checks = [
        equal_bits_and_a_second_run, torch_optimizer_and_rounds, compressed_messages_and_mini_batches, killed_worker,
        frozen_node, strangers, replaced_entries, second_program_of_a_rank, wrong_digests, changed_data, another_version, fleet_that_changes,
        slices_have_the_bits_of_processes, slices_step_behind_an_optimizer_of_torch,
        slices_refuse_loops_that_want_the_gradient, slices_are_saved_and_resumed_anywhere, slices_outlive_workers_and_frozen_nodes,
        two_copies_outlive_a_killed_and_a_frozen_node, slices_in_a_fleet_that_changes,
        slices_end_with_a_lost_node, slices_refuse_what_they_cannot_do, killed_agent_of_the_driver, killed_agent,
    ]  # fmt: skip
    if NAMESPACES:
        checks[-1:-1] = [link_down_for_8_s, link_down_for_50_s]
    only = sys.argv[1:]
    if only and "/" in only[0]:
        first, step = map(int, only.pop().split("/"))
        checks = checks[first::step]
    while not {0, 1, 2} <= set(hub.nodes):
        hub.poll(0.1)
    for check in checks:
        if not only or check.__name__ in only:
            tell(check)
    hub.end()
    for process in restarted:
        assert process.wait(250) == 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""What recording DistributedDataParallel costs: by itself, and in steps with and without, in turn.

Usage: python benchmarks/recording.py [PAIRS]

First the recorder's own work in a step, on one rank: the median difference of processor time between a step of a tiny
model that is recorded and one that is not. It does not depend on the size of the model, only on the number of its
parameters (four), and not on who else uses the machine. Then three ranks on this machine, 64 rows through two layers of
half a million weights each, in the same processes: the median ratio of paired steps of rank 0, in seconds and in its
processor time (which does not count waiting for a busy machine or for other ranks), and what share of a step the
recorder's own work is.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

RANKS, WARM, ALONE = 3, 20, 2000


def models_of(inputs, hidden, folder):
    """The same model bare and recorded, each with its optimiser."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from anyk.fleet.records import ddp

    models = []
    for recorded in (False, True):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, inputs)))
        if recorded:
            ddp(model, f"{folder}/fleet")
        models.append((model, torch.optim.SGD(model.parameters(), lr=0.01)))
    return models


def take(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def join(rank, ranks, folder):
    import torch
    from torch import distributed

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks
    )


def alone(folder):
    """Median seconds of processor time that a recorded step takes more."""
    import torch
    from torch import distributed

    join(0, 1, folder)
    models, x = models_of(4, 4, folder), torch.randn(1, 4)
    more = []
    for step in range(WARM + ALONE):
        used = [0.0, 0.0]
        for which in (0, 1) if step % 2 else (1, 0):
            began = time.thread_time()
            model, optimizer = models[which]
            take(model, optimizer, x)
            used[which] = time.thread_time() - began
        if step >= WARM:
            more.append(used[1] - used[0])
    distributed.destroy_process_group()
    return statistics.median(more)


def rank_main(rank, folder, pairs):
    import torch
    from torch import distributed

    own = 0.0
    if not rank:
        with tempfile.TemporaryDirectory() as other:
            own = alone(other)
    join(rank, RANKS, folder)
    models, x = models_of(512, 1024, folder), torch.randn(64, 512)
    times, processor = ([], []), ([], [])
    for step in range(WARM + pairs):
        for which in (0, 1) if step % 2 else (1, 0):
            distributed.barrier()
            began, used = time.perf_counter(), time.process_time()
            model, optimizer = models[which]
            take(model, optimizer, x)
            if step >= WARM:
                times[which].append(time.perf_counter() - began)
                processor[which].append(time.process_time() - used)
    if not rank:

        def ratio(pairs):
            return statistics.median(recorded / bare for bare, recorded in zip(*pairs, strict=True))

        bare, busy = statistics.median(times[0]), statistics.median(processor[0])
        print(f"recorder alone {1e6 * own:.0f} us: {own / busy:.2%} of a step's processor time, {1e3 * busy:.2f} ms")
        print(
            f"step {1e3 * bare:.2f} ms bare; recorded / bare: median {ratio(times):.4f} of {pairs} pairs, "
            f"processor time {ratio(processor):.4f}"
        )
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        rank_main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        pairs = sys.argv[1] if len(sys.argv) > 1 else "400"
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, __file__, str(r), folder, pairs]) for r in range(RANKS)]
            for one in ranks:
                one.wait()

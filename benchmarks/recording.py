"""What recording DistributedDataParallel costs: steps with and without, in turn, in the same processes.

Usage: python benchmarks/recording.py [PAIRS]

Three ranks on this machine; prints the median ratio of paired steps of rank 0, in seconds and in its processor time
(which does not count waiting for a busy machine or for other ranks). A step is short, 64 rows through two layers of
half a million weights each: recording costs a pass over the gradients and some 0.1 ms for a call of Python a bucket.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

RANKS, WARM = 3, 20


def rank_main(rank, folder, pairs):
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    from anyk.recording import ddp

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    models = []
    for recorded in (False, True):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)))
        if recorded:
            ddp(model, f"{folder}/fleet")
        models.append((model, torch.optim.SGD(model.parameters(), lr=0.01)))
    x = torch.randn(64, 512)
    times, processor = ([], []), ([], [])
    for step in range(WARM + pairs):
        for which in (0, 1) if step % 2 else (1, 0):
            model, optimizer = models[which]
            distributed.barrier()
            began, used = time.perf_counter(), time.process_time()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if step >= WARM:
                times[which].append(time.perf_counter() - began)
                processor[which].append(time.process_time() - used)
    if not rank:

        def ratio(pairs):
            return statistics.median(recorded / bare for bare, recorded in zip(*pairs, strict=True))

        bare = statistics.median(times[0])
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

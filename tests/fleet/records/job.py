"""A DistributedDataParallel job of three ranks: the same training bare and recorded, then one rank that is slow."""

import os
import sys
import time

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from anyk.fleet.records import ddp

RANKS = 3


class Checkpointed(nn.Sequential):
    """Each layer has a backward pass of its own within that of the whole."""

    def forward(self, x):
        for layer in self:
            x = checkpoint(layer, x.requires_grad_(), use_reentrant=True)
        return x


def train(folder, steps=8, slow=None, hook=None, accumulate=1, kind=nn.Sequential):
    torch.manual_seed(0)
    rank = distributed.get_rank()
    model = DistributedDataParallel(
        kind(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)), bucket_cap_mb=0.01
    )
    recorder = None if folder is None else ddp(model, folder)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            x = torch.randn(16, 20, generator=generator)
            if slow == rank:
                x.requires_grad_()
                x.register_hook(lambda grad: time.sleep(0.2) or grad)  # in the backward pass
            if part < accumulate - 1:
                with model.no_sync():
                    model(x).square().mean().backward()
            else:
                model(x).square().mean().backward()
        optimizer.step()
    if recorder is not None:
        recorder.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def main(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    store = distributed.FileStore(f"{folder}/store", RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    assert torch.equal(train(None), train(f"{folder}/same"))
    assert torch.equal(train(None, hook=fp16_compress_hook), train(f"{folder}/compressed", hook=fp16_compress_hook))
    train(f"{folder}/slow", steps=7, slow=1)
    train(f"{folder}/accumulated", steps=5, slow=1, accumulate=2)
    train(f"{folder}/checkpointed", steps=4, kind=Checkpointed)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

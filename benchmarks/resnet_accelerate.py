"""The job of examples/resnet.py with Hugging Face's accelerate, for whoever wants to count lines (docs/networks.md).

Same network, data, augmentation, optimiser, schedule and metric; a step waits for all processes:
PYTHONPATH=examples accelerate launch --cpu --num_processes 4 benchmarks/resnet_accelerate.py
"""

import torch
from accelerate import Accelerator
from resnet import Digits, resnet
from torch import nn

if __name__ == "__main__":
    torch.manual_seed(0)
    accelerator, steps = Accelerator(cpu=True), 40
    module, loss = resnet(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(module.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=steps)
    train = torch.utils.data.DataLoader(Digits(train=True), batch_size=32, shuffle=True)
    test = torch.utils.data.DataLoader(Digits(train=False), batch_size=512)
    module, optimizer, train, test = accelerator.prepare(module, optimizer, train, test)
    step = 0
    while step < steps:
        for images, labels in train:
            optimizer.zero_grad()
            accelerator.backward(loss(module(images), labels))
            optimizer.step()
            schedule.step()
            step += 1
            if step == steps:
                break
    module.eval()
    right = []
    with torch.no_grad():
        for images, labels in test:
            right.append(accelerator.gather_for_metrics(module(images).argmax(1) == labels))
    accelerator.print(f"{steps} steps, accuracy {torch.cat(right).float().mean():.3f}")

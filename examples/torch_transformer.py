"""A small character-level transformer. Try: python examples/torch_transformer.py some.txt

Any text will do; without one it learns its own source. One sample is a window of the text, its targets the characters
that come next. Four workers, of which each step waits for the first three (k-sync).
"""

import sys
from pathlib import Path

import torch
from torch import nn

import anyk

LENGTH = 32  # characters of a window


class Transformer(nn.Module):
    def __init__(self, characters, width=64, heads=4, layers=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, width), nn.Embedding(LENGTH, width)
        block = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, characters, bias=False)
        self.out.weight = self.embed.weight  # shared: it is one parameter of the model
        nn.init.normal_(self.embed.weight, std=0.1)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x):
        n = x.shape[1]
        hidden = self.embed(x) + self.place.weight[:n]
        return self.out(self.blocks(hidden, mask=self.mask[:n, :n]))


def loss(outputs, targets):  # the mean over a window is the window's loss
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


text = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).read_text(encoding="utf-8")
alphabet = sorted(set(text))
codes = torch.tensor([alphabet.index(c) for c in text])
windows = codes.unfold(0, LENGTH + 1, 4)
torch.manual_seed(0)
problem = anyk.problems.TorchProblem(Transformer(len(alphabet)), loss, (windows[:, :-1], windows[:, 1:]))
run = anyk.train(
    problem,
    "k-sync:k=3,batch=16",
    anyk.clusters.Processes(workers=4, delays=anyk.delays.Exponential(mean=0.02), seed=1),
    optimizer=anyk.optimizers.Clip(of=anyk.optimizers.TorchOptimizer("AdamW", lr=3e-3), norm=1.0),
    steps=80,
    evaluate="every=80",
)
print(
    f"{len(text):,} characters, {problem.dimension:,} parameters: {run.history['loss'][0]:.2f} to {run.loss:.2f} nats"
)
said, network = codes[:8].tolist(), problem.module_at(run.model)
for _ in range(60):
    said.append(int(network(torch.tensor([said[-LENGTH:]]))[0, -1].argmax()))
print("".join(alphabet[i] for i in said))

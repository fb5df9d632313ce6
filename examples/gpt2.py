"""A GPT-2 of Hugging Face's transformers, from its configuration, on lines of text of different lengths.

A step waits for all workers but the slowest (k-sync). Needs transformers. Try: python examples/gpt2.py processes 4 TEXT
On Ray: python examples/gpt2.py ray 4
On MPI, one rank more than workers: mpiexec -n 5 python examples/gpt2.py mpi 4
"""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import anyk

LENGTH, END = 64, 0  # bytes of a line at most, and what ends it; a token is a byte


def collate(lines):
    """Token ids padded to the longest line; what is padding is not attended to, and not learned."""
    ids = torch.nn.utils.rnn.pad_sequence(lines, batch_first=True, padding_value=-100)
    return {"input_ids": ids.clamp(min=END), "attention_mask": (ids >= 0).long(), "labels": ids}


where, workers, *file = sys.argv[1:] or ("processes", "2")
text = Path(file[0] if file else __file__).read_bytes()
lines = [torch.tensor([*line[: LENGTH - 1], END]) for line in text.splitlines() if line.strip()]
torch.manual_seed(0)
sizes = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=4, loss_type="ForCausalLM")
model = GPT2LMHeadModel(sizes)
problem = anyk.problems.TorchProblem(
    model,
    lambda model, batch: model(**batch).loss,
    lines,
    collate_fn=collate,
    count=lambda batch: (batch["labels"][:, 1:] != -100).sum(),  # the loss is a mean over tokens, not over lines
)
run = anyk.train(
    problem,
    f"k-sync:k={int(workers) - 1},batch=8",
    anyk.cluster(where, workers=int(workers), delays="exp:mean=0.05", seed=1),
    optimizer=anyk.optimizers.Clip(of=anyk.optimizers.TorchOptimizer("AdamW", lr=3e-3), norm=1.0),
    steps=40,
    evaluate="every=40,on=train",
)
first, last = run.history["loss"][[0, -1]]
print(f"{len(lines)} lines, {problem.dimension:,} parameters: {first:.2f} to {last:.2f} nats a token")
begin = torch.tensor([list(b"import ")])
said = problem.module_at(run.model).generate(begin, max_new_tokens=20, do_sample=False, pad_token_id=END)
print(bytes(said[0].tolist()).decode(errors="replace"))

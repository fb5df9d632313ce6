"""Pictures of codes and strategies as inline SVG, which takes its colours from the page: drawn from the code itself."""

from __future__ import annotations

from html import escape

import numpy as np

import anyk

SIDE, ROW, WIDTH, LEFT = 22, 24, 640, 70  # pixels
ENDINGS = {
    "counted": "in a step",
    "late_counted": "in a step, of an older model",
    "discarded": "finished, not used",
    "cancelled": "cut off",
}
LAW = "shifted-exp:shift=0.6,mean=0.6"


def svg(width: float, height: float, parts: list[str], label: str) -> str:
    """A picture that is never wider than the page."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" style="max-width: {width:g}px" '
        f'role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def text(x: float, y: float, words: object, anchor: str = "middle", kind: str = "word") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(str(words))}</text>'


def box(kind: str, x: float, y: float, width: float, height: float, title: str, opacity: float = 1.0) -> str:
    """A rectangle that says what it is when pointed at."""
    seen = f' fill-opacity="{opacity:.2f}"' if opacity < 1.0 else ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {place} rx="2"{seen}><title>{escape(title)}</title></rect>'


def figure(picture: str, caption: str) -> str:
    """A picture with words below it."""
    return f'<figure class="drawn">{picture}<figcaption>{caption}</figcaption></figure>'


# ------------------------------------------------------------------------------------------- codes


def code(spec: str, workers: int) -> str:
    """The encoding matrix of a code: a row for each reply, a column for each partition."""
    made = anyk.code(spec, workers=workers)
    matrix = made.encoding.toarray()
    most = float(np.abs(matrix).max())
    alike = bool(np.ptp(matrix[matrix != 0.0]) < 1e-12)
    top, parts = 34, []
    for j in range(matrix.shape[1]):
        if made.blocks == 1:
            parts.append(text(LEFT + (j + 0.5) * SIDE, top - 6, j))
    for i, row in enumerate(matrix):
        number = f"{i // made.messages}" + (f".{i % made.messages}" if made.messages > 1 else "")
        parts.append(text(LEFT - 8, top + (i + 0.7) * SIDE, number, "end"))
        for j, value in enumerate(row):
            where = LEFT + j * SIDE + 1, top + i * SIDE + 1, SIDE - 2, SIDE - 2
            if value == 0.0:
                parts.append(
                    f'<rect class="none" x="{where[0]}" y="{where[1]}" width="{where[2]}" height="{where[3]}"/>'
                )
                continue
            title = f"worker {i // made.messages}, partition {j // made.blocks}: {value:.3g}"
            parts.append(box("negative" if value < 0 else "holds", *where, title, 0.25 + 0.75 * abs(value) / most))
    columns = "partition" if made.blocks == 1 else f"partition, {made.blocks} blocks each"
    parts.append(text(LEFT + matrix.shape[1] * SIDE / 2, 12, columns))
    parts.append(text(LEFT - 8, top - 6, "worker" if made.messages == 1 else "message", "end"))
    wide = max(LEFT + matrix.shape[1] * SIDE + 4, 190)
    promised = f"tolerates any {made.tolerates}" if made.tolerates else "promises no number of stragglers"
    colours = f"every coefficient {most:.3g}" if alike else "blue: positive, orange: negative, pale: small"
    if not alike and matrix.min() >= 0:
        colours = "pale: a small coefficient"
    caption = (
        f"<code>{escape(made.spec)}</code>, {workers} workers: load {made.load} of {made.partitions}, {promised} "
        f"({colours})"
    )
    return figure(svg(wide, top + len(matrix) * SIDE + 4, parts, f"Encoding matrix of {made.spec}"), caption)


# ------------------------------------------------------------------------------------------- strategies


def timeline(spec: str, workers: int = 5, seconds: float = 8.0, law: str = LAW, seed: int = 4) -> str:
    """What workers do in the first seconds under a strategy, on the virtual clock; delays are the same for all."""
    problem = anyk.problems.from_data("synthetic:rows=120,features=4")
    keys = {"workers": workers, "delays": law, "seed": seed}
    if not spec.startswith("ada"):  # those that adapt look at the loss
        keys["evaluate"] = None
    if spec.split(":")[0] in ("gc", "sr-sgc", "m-sgc"):
        run = anyk.train_many([problem] * 4, spec, "simulated", steps=3, **keys)
    else:
        run = anyk.train(problem, spec, "simulated", seconds=seconds + 4.0, **keys)
    times = sorted({float(time) for slot in run.models for time in run.history_of(slot)["seconds"]})
    times = [time for time in times if time <= seconds]
    tasks = _tasks(run, seconds)
    scale = (WIDTH - LEFT - 10) / seconds
    top, low = 30, 30 + workers * ROW
    parts = [text(LEFT - 8, top + (worker + 0.65) * ROW, f"worker {worker}", "end") for worker in range(workers)]
    for worker, begin, end, ending, said in tasks:
        wide = max((end - begin) * scale - 1.5, 1.0)
        parts.append(box(ending, LEFT + begin * scale, top + worker * ROW + 4, wide, ROW - 8, said))
    last = -30.0
    for number, time in enumerate(times, 1):
        x = LEFT + time * scale
        parts.append(f'<line class="step" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 4}" y2="{low + 2}"/>')
        if x - last > 14:  # numbers that would overlap are left out
            parts.append(text(x, top - 9, number))
            last = x
    parts.append(text(LEFT - 8, top - 9, "step", "end"))
    parts += [text(LEFT + t * scale, low + 16, f"{t} s") for t in range(int(seconds) + 1)]
    seen = {task[3] for task in tasks}
    legend = ", ".join(
        f'<span class="swatch {ending}"></span> {said}' for ending, said in ENDINGS.items() if ending in seen
    )
    caption = f"<code>{escape(spec)}</code>, {workers} workers: {legend}"
    return figure(svg(WIDTH, low + 22, parts, f"Timeline of {spec}"), caption)


def _tasks(run: anyk.Run, until: float) -> list[tuple[int, float, float, str, str]]:
    """Of each task: worker, begin, end, how it ended, and words; a task of several messages as the best of them."""
    order = list(ENDINGS)
    found = []
    for (_, worker), rows in run.to_frame("chunks").groupby(["task", "worker"], sort=True):
        begin = float(rows["dispatched"].min())
        ending = min(rows["ending"], key=order.index)
        end = float(rows["cancelled" if ending == "cancelled" else "received"].max())
        if begin >= until or end - begin < 1e-9:
            continue
        said = f"worker {worker}, model {rows['version'].min()}: {begin:.2f} to {end:.2f} s, {ENDINGS[ending]}"
        found.append((int(worker), begin, min(end, until), ending, said))
    return found

"""What `anyk watch` costs the run that it follows, and how long after a step the page's data have it.

Usage: python benchmarks/watching.py [WINDOWS] [DELAYS]

One run on processes goes on throughout. In every other window of ten seconds a client reads its live page as a browser
does: its state twice a second, and the page when it has been made again. In the others `anyk watch` and the client are
stopped. Printed are the ratios of the mean step of each watched window to that of its two neighbours, the share of one
core that `anyk watch` used, and the seconds from a step's end until the client had read of it. With delays of `none`
all cores are busy with the run, which is where a reader costs most.
"""

import bisect
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from common import show

import anyk

WORKERS, WINDOW, POLL, SETTLE = 8, 10.0, 0.5, 10.0


class Steps(anyk.callbacks.Callback):
    """When each step was taken, on the clock of the machine."""

    def __init__(self):
        self.at, self.over = [], False

    def on_step(self, info):
        self.at.append(time.monotonic())
        if self.over:
            raise anyk.callbacks.StopRun


def used(pid):
    """Processor seconds of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def client(url):
    """Read a live page as a browser does, and print when there was news of which step."""

    def whole():
        """Read the page; print when it showed which step."""
        text = urllib.request.urlopen(url).read().decode()
        print(time.monotonic(), re.search(r'id="run0-step"[^>]* max="(\d+)"', text)[1], flush=True)
        return json.loads(re.search(r'id="about"[^>]*>(.*?)</script>', text, re.S)[1])["live"]

    seals, reading = [whole()], None
    while True:
        state = json.loads(urllib.request.urlopen(f"{url}/state").read())
        if state["due"] and state["seals"] != seals[-1] and not (reading and reading.is_alive()):
            reading = threading.Thread(target=lambda: seals.append(whole()), daemon=True)
            reading.start()
        time.sleep(POLL)


def windows(folder, steps, count, found):
    """Watch in every other window; what was measured goes into ``found``."""
    watch = subprocess.Popen(
        [sys.executable, "-m", "anyk", "watch", "--port", "0", folder], stdout=subprocess.PIPE, text=True
    )
    url = re.search(r"http://\S+", watch.stdout.readline())[0] + "0"
    reader = subprocess.Popen([sys.executable, __file__, "client", url], stdout=subprocess.PIPE, text=True)
    seen = [tuple(map(float, reader.stdout.readline().split()))]  # it has the page
    time.sleep(SETTLE)
    means, watched = [], []
    for i in range(2 * count + 1):
        for process in (watch, reader):
            process.send_signal(signal.SIGCONT if i % 2 else signal.SIGSTOP)
        began, spent, taken = time.monotonic(), used(watch.pid), len(steps.at)
        time.sleep(WINDOW)
        span = time.monotonic() - began
        means.append(span / max(1, len(steps.at) - taken))
        if i % 2:
            found["share"].append(100 * (used(watch.pid) - spent) / span)
            watched.append((began + 1, began + span - 1))
    for process in (reader, watch):  # who asks ends first
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()
    found["step"] += means[::2]
    found["ratio"] += [2 * means[i] / (means[i - 1] + means[i + 1]) for i in range(1, len(means), 2)]
    seen += [tuple(map(float, line.split())) for line in reader.stdout]
    for begin, end in watched:
        for number in range(bisect.bisect(steps.at, begin), bisect.bisect(steps.at, end)):
            first = next((at for at, step in seen if step > number), None)
            if first is not None:
                found["delay"].append(first - steps.at[number])


def follow(folder, steps, count, found):
    """Measure beside the run, which ends with it, also if it fails."""
    try:
        windows(folder, steps, count, found)
    finally:
        steps.over = True


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    delays = sys.argv[2] if len(sys.argv) > 2 else "none"
    problem = anyk.problems.from_data("synthetic:rows=64000,features=400")
    steps, found = Steps(), {"step": [], "ratio": [], "share": [], "delay": []}
    with tempfile.TemporaryDirectory() as folder:
        reader = threading.Thread(target=follow, args=(folder, steps, count, found))
        reader.start()
        anyk.train(
            problem, "frc:load=2", anyk.cluster("processes", workers=WORKERS, delays=delays, seed=1), evaluate="none",
            optimizer=anyk.optimizers.GD(lr=0.01), callbacks=[steps], steps=10**9, out=Path(folder) / "run",
        ).close()  # fmt: skip
        reader.join()
    print(f"{len(steps.at):,} steps, {count} watched windows of {WINDOW:g} s, delays {delays}")
    show("step, not watched", [1e3 * one for one in found["step"]], "ms")
    show("step, watched / not watched", found["ratio"], "", "at most 1.02")
    show("anyk watch, share of one core", found["share"], "%")
    show("from a step to the page's data", found["delay"], "s", "below 1")
    print(f"{'99 % of the steps are there within':<44} {statistics.quantiles(found['delay'], n=100)[98]:9.4g} s")


if __name__ == "__main__":
    client(sys.argv[2]) if sys.argv[1:2] == ["client"] else main()

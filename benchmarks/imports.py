"""CPU seconds of `import anyk` over those of `import numpy`, and of `anyk --help`."""

import resource
import shutil
import subprocess
import sys
import time

from common import show


def cpu(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


numpy_alone = [cpu([sys.executable, "-c", "import numpy"])[0] for _ in range(7)]
with_anyk = [cpu([sys.executable, "-c", "import numpy, anyk"])[0] for _ in range(7)]
show("import numpy", numpy_alone, "CPU s")
show("import anyk, over numpy", [a - b for a, b in zip(with_anyk, numpy_alone, strict=True)], "CPU s", "at most 0.1")
script = shutil.which("anyk") or sys.exit("anyk is not on the PATH")
show("anyk --help", [cpu([script, "--help"])[1] for _ in range(7)], "s", "under 0.5")

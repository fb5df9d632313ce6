"""The same training job on 12 processes with the same stragglers: waiting for all of them, and not."""

import anyk

problem = anyk.problems.from_data("digits")
for spec in ("uncoded", "frc:load=3", "agc:load=3,wait=5"):
    cluster = anyk.clusters.Processes(workers=12, delays=anyk.delays.Exponential(mean=0.2), seed=1)
    run = anyk.train(problem, spec, cluster, optimizer=anyk.optimizers.Nesterov(lr=0.15), steps=12)
    print(f"{spec:<20} {run.seconds:6.2f} s   floor {run.floor_seconds:6.2f} s   accuracy {run.metric['value']:.3f}")

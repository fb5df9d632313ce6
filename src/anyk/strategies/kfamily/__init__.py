"""The K family: K gradients make a step, and K may grow during the run."""

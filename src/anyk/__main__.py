"""``python -m anyk`` is ``anyk``."""

import os
import signal
import sys


def main() -> None:
    """Run the command line; an interrupt ends it with one line, even while modules are still imported.

    SIGTERM counts as an interrupt, so that what was begun is tidied up. In forked processes SIGTERM has its usual
    effect: it ends them.
    """
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    try:
        from anyk.cli import main as command

        command()
    except KeyboardInterrupt:
        print("anyk: interrupted; start it again", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

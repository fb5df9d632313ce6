"""``python -m anyk`` is ``anyk``."""

import os
import signal
import sys


def main() -> None:
    """Run the command line; an interrupt is answered in one line from the start, also while modules are imported.

    SIGTERM is an interrupt too, so that what was begun is tidied up whenever it comes; in processes that are forked it
    ends them, as always.
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

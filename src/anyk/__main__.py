"""``python -m anyk`` is ``anyk``."""

import sys


def main() -> None:
    """Run the command line; an interrupt is answered in one line from the start, also while modules are imported."""
    try:
        from anyk.cli import main as command

        command()
    except KeyboardInterrupt:
        print("anyk: interrupted; start it again", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

"""``python -m anyk`` is ``anyk``."""

from anyk.cli import main

if __name__ == "__main__":
    main()

"""Count the tokens of each package and the figures of scripts/figures.py; fail where scripts/sizes.toml allows less.

Lines can be packed, tokens cannot; comments and docstrings do not count. ``--where FIGURE`` lists the places that a
figure counts. ``--lower`` writes the present numbers where they are smaller, so that a package that has become smaller
stays so. Raising a number by hand needs a reason that a user of anyk would accept, in the body of the commit.
"""

import shlex
import sys
import tomllib
from pathlib import Path

from figures import count_figures

ROOT = Path(__file__).parents[1]
LIMITS = Path(__file__).with_name("sizes.toml")


def main() -> int:
    places, tokens = count_figures(ROOT / "src" / "anyk")
    if "--where" in sys.argv:
        name = " ".join(sys.argv[sys.argv.index("--where") + 1 :])
        if name not in places:
            print("--where takes one of:", *places, sep="\n")
            return 2
        print(
            *(place if count == 1 else f"{place}: {count}" for place, count in places[name].items() if count), sep="\n"
        )
        return 0
    limits = tomllib.loads(LIMITS.read_text(encoding="utf-8"))
    allowed, figures = limits.pop("figures"), {name: counts.total() for name, counts in places.items()}
    if "--lower" in sys.argv:
        lines = [f"{name} = {min(size, limits.get(name, size))}" for name, size in sorted(tokens.items())]
        lines += ["", "[figures]"]
        lines += [f'"{name}" = {min(number, allowed.get(name, number))}' for name, number in figures.items()]
        LIMITS.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return 0
    grown = [
        f"anyk.{name} has {size:,} tokens, {limits.get(name, 0):,} are allowed: remove some before adding more"
        for name, size in tokens.items()
        if size > limits.get(name, 0)
    ]
    grown += [
        f"{name}: {number:,}, but {allowed.get(name, 0):,} are allowed: "
        f"scripts/size.py --where {shlex.quote(name)} lists them"
        for name, number in figures.items()
        if number > allowed.get(name, 0)
    ]
    print("\n".join(grown), end="\n" if grown else "")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())

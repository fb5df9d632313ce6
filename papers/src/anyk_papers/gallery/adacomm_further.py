"""AdaComm beyond plain SGD on shuffled data: Adam on the workers, and labels that differ from worker to worker."""

from anyk.optimizers import Adam
from anyk_papers.gallery.adacomm_tau import NEAR, OPTIMIZER, label, train
from anyk_papers.item import Criterion, Item
from anyk_papers.item_table import Case, Table, above_best, cases
from anyk_papers.lab import Lab, Results
from anyk_papers.pictures import Curves

TAUS = (1, 5, 20)
SETTINGS = {"Adam": (Adam(lr=0.003), {}), "non-i.i.d.": (OPTIMIZER, {"split": "dirichlet:alpha=0.1"})}


def measure(lab: Lab, case: Case, seed: int) -> Results:
    optimizer, options = SETTINGS[case["setting"]]
    return train(lab, case, seed, largest=20, optimizer=optimizer, **options)


def table(lab: Lab) -> Table:
    return lab.measure(measure, cases(setting=list(SETTINGS), tau=[*TAUS, "adacomm"]))


def _ahead(setting: str) -> Criterion:
    def ahead(t: Table) -> tuple[bool, str]:
        adaptive, synchronous = (t.row(setting=setting, tau=tau) for tau in ("adacomm", 1))
        end = min(float(x[-1]) for row in (adaptive, synchronous) for x, _ in row.curves["loss"])
        losses = [row.at("loss", end) for row in (adaptive, synchronous)]
        return losses[0] < losses[1], f"{losses[0]:.3g} against {losses[1]:.3g} at the end"

    return Criterion(f"{setting}: AdaComm's loss is below that of averaging after every step", "lower", ahead)


def _envelope(setting: str) -> Criterion:
    def near(t: Table) -> tuple[bool, str]:
        fixed = [t.row(setting=setting, tau=tau) for tau in TAUS]
        above = above_best(t.row(setting=setting, tau="adacomm"), fixed, "loss")
        return above < NEAR, (
            f"{100 * above:+.0f} % from the best fixed tau of each time, on average (test: below {100 * NEAR:g} %)"
        )

    what = f"{setting}: AdaComm's loss is on average within 10 % of that of the best fixed tau of each time"
    return Criterion(what, "lower envelope", near)


ITEM = Item(
    name="adacomm-further",
    title="AdaComm with Adam on the workers, and with labels that differ from worker to worker, 8 workers",
    source="Wang and Joshi 2019 (AdaComm): its rule in settings that its analysis leaves out",
    minutes=5.0,
    table=table,
    claims=tuple(claim(setting) for setting in SETTINGS for claim in (_ahead, _envelope)),
    panels=tuple(
        Curves(
            curve="loss", x="virtual seconds", y="loss", title=setting, log="y", label=label, of={"setting": setting}
        )
        for setting in SETTINGS
    ),
    columns=("setting", "tau", "loss", "accuracy"),
    differs="the published analysis is about SGD on data that workers share; Adam's state begins anew with each period "
    "of local steps; non-i.i.d. are labels drawn from a Dirichlet law with alpha = 0.1 for each worker",
)

"""What the PIVODL paper's figures and Table III ask for: axes, settings, and the runs behind them.

The paper's Table II, with its settings, is lost in the text that this follows. What that text says
is taken: 80 % of the rows train, five runs, 4 clients unless they vary, clients up to 10, depth and
trees up to 6, epsilon 4 and 10 in Table III. What it does not say was chosen: depth 3 and 5 trees
unless they vary, epsilon 6 where noise is on and epsilon does not vary (the middle of 2 to 10),
delta 1e-5, clips .1 (energy: 2), 32 buckets, eta .3, lambda 1, gamma 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from vertical_document import DATA_SETS, PARTIES

Axis = Literal["clients", "depth", "trees", "epsilon"]
Measure = Literal["quality", "seconds", "megabytes"]

CLASSIFIED = tuple(
    name for name, data in DATA_SETS.items() if data.settings["objective"] == "binary:logistic"
)
"""Data sets with classes to guess, those of Table III."""

TABLE = "table-3"


@dataclass(frozen=True)
class Run:
    """One training by the protocol; equal runs are made once, whatever figures ask for them.

    Attributes
    ----------
    data : str
    seed : int
    clients, depth, trees : int
    epsilon : float
        0: no noise.
    sensitivity : {"exact", "paper"}
    encryption : {"none", "paillier"}
    rows : int
        The first so many rows; 0: all.
    key_bits : int
        0 without encryption.
    """

    data: str
    seed: int
    clients: int
    depth: int
    trees: int
    epsilon: float = 0.0
    sensitivity: str = "exact"
    encryption: str = "none"
    rows: int = 0
    key_bits: int = 0

    @property
    def key(self) -> str:
        """Text that tells it from all others."""
        return " ".join(["run", *(f"{name}={value}" for name, value in asdict(self).items())])


@dataclass(frozen=True)
class Reference:
    """XGBoost on the joined table, and the trivial model, on one split."""

    data: str
    seed: int
    depth: int
    trees: int
    rows: int = 0

    @property
    def key(self) -> str:
        """Text that tells it from all others."""
        return " ".join(["reference", *(f"{name}={at}" for name, at in asdict(self).items())])


Work = Run | Reference


@dataclass(frozen=True)
class Figure:
    """A figure of the paper: one panel a data set.

    Attributes
    ----------
    name : str
    axis : str
        What varies, along x.
    measure : {"quality", "seconds", "megabytes"}
        Along y: accuracy or RMSE on the rows for evaluation, without and with partial differential
        privacy; or seconds of training, or megabytes of all messages, without and with encryption.
    """

    name: str
    axis: Axis
    measure: Measure

    @property
    def number(self) -> str:
        """As the paper counts it."""
        return self.name.removeprefix("figure-")


FIGURES: tuple[Figure, ...] = tuple(
    Figure(f"figure-{number}", axis, measure)
    for number, axis, measure in (
        (6, "clients", "quality"),
        (7, "depth", "quality"),
        (8, "trees", "quality"),
        (9, "epsilon", "quality"),
        (10, "clients", "seconds"),
        (11, "depth", "seconds"),
        (12, "trees", "seconds"),
        (13, "clients", "megabytes"),
        (14, "depth", "megabytes"),
        (15, "trees", "megabytes"),
    )
)

NAMES = (*(figure.name for figure in FIGURES), TABLE)


@dataclass(frozen=True)
class Plan:
    """How much of it is made: the whole, or the quick form.

    Attributes
    ----------
    data : sequence of str
    values : mapping of axis to sequence of float
    depth, trees : int
        Where they do not vary.
    epsilon : float
        Of runs with noise where it does not vary.
    paper_epsilons : sequence of float
        Of runs with the paper's own, too small noise, in Table III.
    seeds, encrypted_seeds : int
    rows : int
        The first so many rows; 0: all.
    key_bits : int
    """

    data: Sequence[str] = tuple(DATA_SETS)
    values: Mapping[str, Sequence[float]] = field(
        default_factory=lambda: {
            "clients": (2, 4, 6, 8, 10),
            "depth": (2, 3, 4, 5, 6),
            "trees": (2, 3, 4, 5, 6),
            "epsilon": (2.0, 4.0, 6.0, 8.0, 10.0),
        }
    )
    clients: int = PARTIES
    depth: int = 3
    trees: int = 5
    epsilon: float = 6.0
    paper_epsilons: Sequence[float] = (4.0, 10.0)
    seeds: int = 5
    encrypted_seeds: int = 1
    rows: int = 0
    key_bits: int = 2048

    def run(self, data: str, seed: int, **changes: Any) -> Run:
        """Make a run at the settings that do not vary, but for changes."""
        default = Run(data, seed, self.clients, self.depth, self.trees, rows=self.rows)
        return replace(default, **changes)

    def encrypted(self, run: Run) -> Run:
        """The same with encryption."""
        return replace(run, encryption="paillier", key_bits=self.key_bits)

    def reference(self, run: Run) -> Reference:
        """What the run is compared with."""
        return Reference(run.data, run.seed, run.depth, run.trees, run.rows)


QUICK = Plan(
    values={"clients": (2, 4), "depth": (2, 3), "trees": (3, 4), "epsilon": (2.0, 10.0)},
    depth=2,
    trees=3,
    epsilon=10.0,
    paper_epsilons=(10.0,),
    seeds=2,
    rows=3000,
    key_bits=1024,
)
"""Every figure from few rows, small trees and keys that protect nothing: that all of it works."""


def points(figure: Figure, plan: Plan, *, seed: int, data: str) -> Iterator[tuple[float, Run]]:
    """Give each value of the figure's axis, and the plain run there, of a seed and data set.

    Along epsilon the runs have noise; else the same runs with noise are `noisy` ones.
    """
    for value in plan.values[figure.axis]:
        amount = float(value) if figure.axis == "epsilon" else int(value)
        yield value, plan.run(data, seed, **{figure.axis: amount})


def noisy(run: Run, plan: Plan) -> Run:
    """The same with noise."""
    return replace(run, epsilon=run.epsilon or plan.epsilon)


def attacked(plan: Plan) -> Iterator[Run]:
    """Give the runs of Table III."""
    for data in plan.data:
        if data not in CLASSIFIED:
            continue
        for seed in range(plan.seeds):
            yield plan.run(data, seed)
            for epsilon in plan.values["epsilon"]:
                yield plan.run(data, seed, epsilon=float(epsilon))
            for epsilon in plan.paper_epsilons:
                yield plan.run(data, seed, epsilon=float(epsilon), sensitivity="paper")


def work_of(names: Sequence[str], plan: Plan) -> list[Work]:
    """All that has to be measured for these figures, each once: references, plain, encrypted."""
    runs: dict[Run, None] = {}
    for figure in FIGURES:
        if figure.name not in names:
            continue
        for data in plan.data:
            for seed in range(plan.seeds):
                runs |= dict.fromkeys(_runs_of(figure, plan, seed=seed, data=data))
    if TABLE in names:
        runs |= dict.fromkeys(attacked(plan))
    plain = [run for run in runs if run.encryption == "none"]
    references = dict.fromkeys(plan.reference(run) for run in plain)
    return [*references, *plain, *(run for run in runs if run.encryption != "none")]


def _runs_of(figure: Figure, plan: Plan, *, seed: int, data: str) -> Iterator[Run]:
    if figure.axis == "epsilon":
        yield plan.run(data, seed)
    for _, run in points(figure, plan, seed=seed, data=data):
        yield run
        if figure.measure == "quality":
            yield noisy(run, plan)
        elif seed < plan.encrypted_seeds:
            yield plan.encrypted(run)


def expected_seconds(work: Work) -> float:
    """CPU seconds that it takes, very nearly: fitted to runs on one core of some machine."""
    if isinstance(work, Reference):
        return 0.4
    share = min(1.0, work.rows / 30000.0) if work.rows else 1.0
    nodes = work.trees * (2**work.depth - 1)
    levels = work.trees * work.depth
    a_level = 0.006 + 0.007 * share + 0.0024 * work.clients
    plain = 0.25 * work.clients * share + levels * work.clients * a_level + 0.009 * nodes
    if work.encryption == "none":
        return plain
    columns = {"credit": 1.0, "bank": 0.5, "energy": 1.9}[work.data]
    size = (work.key_bits / 2048.0) ** 2.4
    packed = 0.87 * levels + 0.1 * nodes  # many nodes of a level are in one ciphertext
    return plain + columns * size * packed * (0.55 + 0.11 * work.clients)

"""How rows of one table are dealt to simulated sites."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.run_config import ConfigError, read
from fedapp.simulation import simulate
from fedapp.site_data import BUNDLED, PARTITIONS, Partition, deal, load_frame, natural_sites
from tasks.site.faults import SiteFault
from tasks.survival.generators import Design, generate


def table(rows: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "time": rng.exponential(size=rows),
            "event": rng.integers(0, 2, size=rows),
            "hospital": rng.choice(["north", "south", "east"], size=rows),
        }
    )


def partition(kind: str, **more: object) -> Partition:
    return Partition(kind=kind, time="time", event="event", column="hospital", **more)  # type: ignore[arg-type]


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from([kind for kind in PARTITIONS if kind != "natural"]),
    rows=st.integers(1, 60),
    sites=st.integers(1, 20),
    seed=st.integers(0, 2**31),
    alpha=st.sampled_from([1e-9, 0.1, 1.0, 100.0]),
)
def test_every_row_goes_to_one_site(
    kind: str, rows: int, sites: int, seed: int, alpha: float
) -> None:
    frame = table(rows, seed)
    parts = deal(frame, partition(kind, alpha=alpha), sites=sites, seed=seed)
    assert len(parts) == sites
    assert sorted(np.concatenate(parts)) == list(range(rows))
    assert all((np.diff(part) > 0).all() for part in parts)
    again = deal(frame, partition(kind, alpha=alpha), sites=sites, seed=seed)
    assert all(np.array_equal(*pair) for pair in zip(parts, again, strict=True))


@pytest.mark.parametrize("kind", ["iid", "random", "dirichlet"])
def test_another_seed_deals_otherwise(kind: str) -> None:
    first, second = (deal(table(), partition(kind), sites=4, seed=seed) for seed in (0, 1))
    assert not np.array_equal(first[0], second[0])


@pytest.mark.parametrize("kind", ["iid", "censoring-non-iid", "time-non-iid"])
def test_sites_of_equal_size(kind: str) -> None:
    sizes = [part.size for part in deal(table(302), partition(kind), sites=4, seed=0)]
    assert sizes == [76, 76, 75, 75]


def test_random_sites_differ_in_size_but_not_by_more_than_three() -> None:
    sizes = [part.size for part in deal(table(10_000), partition("random"), sites=8, seed=0)]
    assert len(set(sizes)) > 4
    assert max(sizes) < 3.1 * min(sizes)


def test_censoring_non_iid_puts_the_censored_first() -> None:
    frame = table()
    shares = [
        frame["event"].iloc[part].mean()
        for part in deal(frame, partition("censoring-non-iid"), sites=5, seed=0)
    ]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)


def test_time_non_iid_puts_short_times_first() -> None:
    frame = table()
    parts = deal(frame, partition("time-non-iid"), sites=5, seed=0)
    ends = [(frame["time"].iloc[p].min(), frame["time"].iloc[p].max()) for p in parts]
    assert all(ends[i][1] <= ends[i + 1][0] for i in range(4))


def test_dirichlet_sites_differ_more_the_smaller_alpha_is() -> None:
    frame = table(4000)

    def spread(alpha: float) -> float:
        """Standard deviation over sites of the mean time, mean of ten seeds."""
        return float(
            np.mean(
                [
                    np.std(
                        [
                            frame["time"].iloc[part].mean()
                            for part in deal(
                                frame, partition("dirichlet", alpha=alpha), sites=5, seed=seed
                            )
                            if part.size
                        ]
                    )
                    for seed in range(10)
                ]
            )
        )

    assert spread(0.1) > 2 * spread(2.0) > 4 * spread(500.0)


def test_natural_sites_are_the_values_of_a_column() -> None:
    frame = table()
    parts = deal(frame, partition("natural"), sites=3, seed=0)
    assert [set(frame["hospital"].iloc[part]) for part in parts] == [{"east"}, {"north"}, {"south"}]
    assert natural_sites(frame, "hospital") == 3


@pytest.mark.parametrize(
    ("asked", "sites", "words"),
    [
        (partition("natural"), 5, 'column "hospital" has 3 values.*run with num-sites = 3'),
        (Partition("natural"), 3, "needs partition-column"),
        (Partition("natural", column="event", event="event"), 2, "times or events, which cannot"),
        (Partition("natural", column="ward"), 3, 'column "ward".*is missing'),
        (Partition("time-non-iid", time="days"), 3, 'column "days".*is missing'),
        (Partition("halves"), 3, '"halves" must be one of: iid, random'),
    ],
)
def test_what_cannot_be_dealt(asked: Partition, sites: int, words: str) -> None:
    with pytest.raises(SiteFault, match=words):
        deal(table(), asked, sites=sites, seed=0)


def test_rows_without_a_site_are_counted() -> None:
    frame = table()
    frame.loc[:6, "hospital"] = None
    with pytest.raises(SiteFault, match=r'"hospital" is missing in 7 of 300 rows') as caught:
        deal(frame, partition("natural"), sites=3, seed=0)
    assert "north" not in str(caught.value)


# -- bundled and simulated data -------------------------------------------------------------------


def test_lung_has_eighteen_institutions_that_are_no_feature() -> None:
    frame = BUNDLED["lung"].load()
    assert natural_sites(frame, "inst") == 18
    sizes = []
    for part in range(18):
        rows = load_frame(
            {"partition-id": part, "num-partitions": 18},
            data="lung",
            partition=Partition("natural"),
            seed=0,
        )
        assert "inst" not in rows.columns
        sizes.append(len(rows))
    assert sorted(sizes) == sorted(frame["inst"].value_counts())
    assert (sum(sizes), min(sizes)) == (227, 2)
    dealt = load_frame({"partition-id": 0, "num-partitions": 2}, data="lung", seed=0)
    assert "inst" not in dealt.columns


@pytest.mark.parametrize(
    ("name", "rows", "events"),
    [("lung", 227, 164), ("rossi", 432, 114), ("kidney-transplant", 863, 140), ("larynx", 90, 50)],
)
def test_bundled_data_are_those_of_their_source(name: str, rows: int, events: int) -> None:
    bundled = BUNDLED[name]
    frame = bundled.load()
    assert (len(frame), int(frame[bundled.event].sum())) == (rows, events)
    assert (frame[bundled.time] > 0).all()


def test_simulated_rows_are_those_of_the_generator() -> None:
    design = Design(n_rows=40, n_features=11)
    parts = [
        load_frame({"partition-id": part, "num-partitions": 3}, data="SDGM1", design=design, seed=5)
        for part in range(3)
    ]
    truth = generate("SDGM1", design, seed=5)
    pooled = pd.concat(parts)
    assert list(pooled.columns) == [f"x{i:02d}" for i in range(1, 12)] + ["time", "event"]
    assert sorted(pooled["time"]) == sorted(truth.time)
    assert pooled["event"].sum() == truth.event.sum()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"data": "SDGM2", "n-features": 2}, "survival.n-features = 2: SDGM2 needs at least 3"),
        ({"data": "SDGM3", "censoring-rate": 1.0}, "survival.censoring-rate = 1.0: SDGM3 has no"),
        ({"data": "SDGM2", "rho": 0.2}, "survival.rho = 0.2: SDGM2 has independent"),
        (
            {"data": "SDGM1", "censoring-rate": 1.0, "censoring-fraction": 0.4},
            "one of them must be 0",
        ),
        ({"partition": "halves"}, 'survival.partition = \'halves\': must be "iid" | "random"'),
    ],
)
def test_keys_of_simulated_data_are_checked(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read({f"survival.{key}": value for key, value in keys.items()})
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["random", "time-non-iid", "dirichlet", "censoring-non-iid"])
def test_runs_over_every_partition(kind: str) -> None:
    """Sites differ, one has no event under censoring-non-iid: the run goes on."""
    result = simulate(
        "survival",
        config={
            "survival.data": "weibull",
            "survival.n-rows": 400,
            "survival.n-features": 4,
            "survival.partition": kind,
            "survival.on-small-site": "exclude",
            "survival.rounds": 2,
            "survival.local-steps": 2,
        },
        num_sites=4,
    )
    assert result.summary["status"] == "ok", result.summary
    rows = [s["training-rows"] + s["evaluation-rows"] for s in result.summary["sites"]]
    assert sum(rows) == 400
    if kind == "censoring-non-iid":
        assert min(site["training-events"] for site in result.summary["sites"]) == 0

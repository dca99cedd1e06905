"""Words of the report on a run of vertical XGBoost: key numbers and paragraphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedapp.report.vertical_xgboost_tables import seconds_by_operation
from fedapp.run_record import RunRecord
from fedapp.vertical_privacy import privacy_lines
from tasks.vertical_xgboost.classes import class_names

_SERVER = (
    "The server learns gains, candidates of equal gain, bucket counts, which anonymous features "
    "have missing values, the rank of each in its owner's columns, of every split owner, anonymous "
    "feature, number of the bucket and side of missing values, refusals of candidates (whose they "
    "are, where it adds up the sums itself), and the shape of the trees; never a row, a label, a "
    "sum of gradients, a name of a feature or a threshold."
)
_SPLIT_CLIENT = (
    "The party that decrypts for another (its split client) is drawn once per training and is "
    "trusted to ally with nobody: with the owner of the columns it would see every sum of the "
    "owner's candidates, and with another label owner, who knows their order, sums by anonymous "
    "candidate."
)
_SHUFFLED = (
    "Candidates reach the split client in a secret order. The order by itself tells it nothing; "
    "matching its own share of the sums with the totals can link them again (the more, the more "
    "labels it owns)."
)
_NOT_SHUFFLED = (
    "shuffle = false: the split client knows which anonymous feature and bucket each sum belongs "
    "to."
)
_LABEL_OWNERS = (
    "Label owners learn, for their own rows, the order of buckets of others' unnamed features, and "
    "owner, anonymous feature, bucket and missing side of every split."
)
_DRAWN_ROWS = (
    "subsample: everybody knows which rows a tree has, so the sum of their gradients, which its "
    "split clients read, is an equation about labels; many trees of few rows tell them."
)
_DRAWN_COLUMNS = (
    "colsample-bytree: label owners learn the rank of each unnamed feature in its owner's columns, "
    "as the server does."
)
_EARLIER_SPLITS = (
    "Label owners learned on which side their own rows are at every split of the trees that were "
    "there before."
)
_KEYS = (
    "The relay could swap keys that nobody compares: fingerprints are to be compared out of band, "
    "and pinned in the node configuration."
)
_PLAIN = (
    "encryption = none: the sums travelled without encryption, and nothing of what is said of "
    "sums holds."
)
_HASHED = (
    "Rows were aligned by keyed hashes: each party sealed its ids for the hub ({hub}) as hashes, "
    "with the key. The hub learned which of its ids each other party has, and can test whether any "
    "other id that it can name is among them; the others learned which of their ids all parties "
    "have, the server only counts."
)
_PSI = (
    "Rows were aligned by private set intersection with the hub ({hub}): it learned which of its "
    "ids each other party has, the others which of their ids all parties have, the server only "
    "counts. A party that puts in made-up ids is not noticed."
)
_NO_PRIVACY = (
    "No differential privacy: every party receives the exact weights of all leaves, and a source "
    "knows all rows of a leaf where the splits above are its own. How well each party guesses "
    "labels of others from that, in a simulated run: fedapp audit."
)
_NOISY_ROWS = (
    "Sources predict their own rows in training with noisy leaves, so losses and metrics by tree "
    "are those of such predictions; predictions of the finished model use exact leaves"
)
_TWO = "With two parties each finds the other's sums by subtracting its own from the total."
_THREE = (
    "With three parties, a split client and one other label owner together find the sums of the "
    "third by subtraction."
)


def tree_lines(run: RunRecord) -> list[dict[str, Any]]:
    """Lines of the metrics that are of a tree."""
    return [line for line in run.rounds if isinstance(line.get("tree"), int)]


def quality_words(run: RunRecord) -> tuple[str, str, str]:
    """Name, value and detail of what the run is about: accuracy or RMSE, on evaluation rows."""
    summary = run.summary
    rmse = run.setting("vertical-xgboost.objective") in ("reg:squarederror", "count:poisson")
    word, key = ("RMSE", "rmse") if rmse else ("Accuracy", "accuracy")
    for part, rows in (("test", "on evaluation rows"), ("train", "on the rows of training")):
        value = summary.get(f"{part}-{key}")
        if value is not None:
            digits = f"{value:.4g}" if rmse else f"{value:.3f}"
            loss = summary.get(f"{part}-loss")
            detail = rows if loss is None else f"{rows}; loss {loss:.4g}"
            exact = summary.get(f"exact-leaves-{part}-{key}")
            if exact is not None:
                detail += f"; {exact:.4g} with exact leaves alone"
            return word, digits, detail
    return word, "–", "no result"


def trees_words(run: RunRecord) -> tuple[str, str]:
    """How many trees, and how deep they may be."""
    grown = run.summary.get("trees", len(tree_lines(run)))
    depth = run.setting("vertical-xgboost.max-depth")
    kept = run.summary.get("trees-kept")
    parts = [f"depth {depth} at most"] if depth is not None else []
    if classes := class_names(str(run.setting("vertical-xgboost.classes", ""))):
        parts.insert(0, f"for each of {len(classes)} classes")
    if kept is not None and kept < grown:
        parts.insert(0, f"of {grown} grown: stopped early")
    return str(grown if kept is None else kept), ", ".join(parts)


def encryption_words(run: RunRecord) -> tuple[str, str]:
    """How sums were encrypted, and what it took."""
    method = run.setting("vertical-xgboost.encryption")
    if method is None:
        return "–", "not recorded"
    if method == "none":
        return "none", "sums in clear"
    parts = []
    if "ciphertexts" in run.summary:
        parts.append(f"{run.summary['ciphertexts']:,} ciphertexts".replace(",", "\u202f"))
    seconds = seconds_by_operation(run.summary, tree_lines(run))
    if seconds:
        parts.append(f"{sum(seconds.values()):.3g} s of CPU")
    bits = run.setting("vertical-xgboost.key-bits", 2048)
    return f"Paillier {bits}", ", ".join(parts)


def training_words(run: RunRecord) -> list[str]:
    """What the losses are, and where they come from."""
    words = (
        "Losses and metrics are sums over the label owners, added under masks: no party tells its "
        "own. They arrive with the first reply of the next tree."
    )
    if run.setting("vertical-xgboost.test-fraction") == 0:
        words += " No rows were kept for evaluation: all is measured on the rows of training."
    return [words]


def alignment_words(run: RunRecord) -> list[str]:
    """How many rows are common to all parties, if rows were aligned."""
    before, common = run.summary.get("rows-before"), run.summary.get("n-rows")
    if not isinstance(before, Mapping) or common is None:
        return []
    counts = ", ".join(f"{count} at {name}" for name, count in before.items())
    return [f"Aligned rows: {common} are common to all parties, of {counts}."]


def alignment_statement(run: RunRecord) -> list[str]:
    """Who learned what of the ids, if rows were aligned."""
    before = run.summary.get("rows-before")
    mode = run.setting("vertical-xgboost.alignment", "same")
    words = {"hashed": _HASHED, "psi": _PSI}.get(str(mode))
    if words is None:
        return []
    named = run.setting("vertical-xgboost.alignment-hub")
    first = min(map(str, before)) if isinstance(before, Mapping) and before else "first by name"
    return [words.format(hub=named or first)]


def central_words(central: Mapping[str, Any]) -> list[str]:
    """Whether the trees are those of a central fit."""
    words = (
        "A simulation has all columns and labels in one place: the same settings on the joined "
        "table, fitted by one party"
    )
    with_xgboost = any(key.startswith("xgboost-") for key in central)
    words += ", and by XGBoost on the same buckets." if with_xgboost else "."
    if central and "same-trees" not in central:
        words += " Both without noise: other trees are meant to come out."
    if "same-trees" in central:
        words += (
            " All splits and leaves are the same, bit for bit."
            if central["same-trees"]
            else " The trees are not the same."
        )
    return [words]


def privacy_words(run: RunRecord) -> list[str]:
    """The guarantee of partial differential privacy with its assumptions, or that there is none."""
    lines = privacy_lines(run.summary)
    if not lines:
        return [_NO_PRIVACY]
    return [f"{line[0].upper()}{line[1:].rstrip('.')}." for line in [*lines, _NOISY_ROWS]]


def fingerprint_words(run: RunRecord) -> list[str]:
    """The fingerprint of all parties' keys, if the run has one."""
    code = run.summary.get("roster-fingerprint")
    if not code:
        return []
    return [
        f"Fingerprint of the keys of all parties, as the server has them: {code}. A party for "
        "which it is another one was shown other keys."
    ]


def trust_words(run: RunRecord) -> list[str]:
    """The statements on trust that follow from the run's configuration."""
    parties = run.summary.get("n-sites")
    shuffled = run.setting("vertical-xgboost.shuffle", True)
    return [
        *trust_statements(
            encryption=str(run.setting("vertical-xgboost.encryption", "paillier")),
            aggregator=str(run.setting("vertical-xgboost.aggregator", "server")),
            shuffle=bool(shuffled),
            num_parties=parties if isinstance(parties, int) else None,
        ),
        *_statements_of_settings(run),
        *alignment_statement(run),
    ]


def _statements_of_settings(run: RunRecord) -> list[str]:
    """What sampling and earlier trees tell beside that."""
    found = []
    if run.setting("vertical-xgboost.subsample", 1.0) < 1.0:
        found.append(_DRAWN_ROWS)
    if run.setting("vertical-xgboost.colsample-bytree", 1.0) < 1.0:
        found.append(_DRAWN_COLUMNS)
    if run.setting("vertical-xgboost.warm-start", "") or run.setting("resume", ""):
        found.append(_EARLIER_SPLITS)
    return found


def trust_statements(
    *, encryption: str, aggregator: str, shuffle: bool, num_parties: int | None
) -> list[str]:
    """Sentences on whom the parties trust with what.

    Parameters
    ----------
    encryption : {"paillier", "none"}
    aggregator : {"server", "source"}
    shuffle : bool
    num_parties : int or None
        None if it is not known.
    """
    adds = (
        "Ciphertexts are added by the server, which holds no key and no rows."
        if aggregator == "server"
        else "Ciphertexts go sealed to the owner of the columns, which adds, shuffles and "
        "re-randomises them."
    )
    few = {2: [_TWO], 3: [_THREE]}.get(num_parties or 0, [])
    return [
        *([_PLAIN] if encryption == "none" else [adds]),
        *few,
        _SPLIT_CLIENT,
        _SHUFFLED if shuffle else _NOT_SHUFFLED,
        _LABEL_OWNERS,
        _SERVER,
        _KEYS,
    ]

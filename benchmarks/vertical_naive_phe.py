"""One node of the vertical task as the PIVODL paper has it: `phe`, a number a ciphertext.

Each label owner but the split client encrypts its sum of gradients and its sum of Hessians, as
floating-point numbers, for every candidate of a source; they are added, the split client decrypts
the totals and adds its own share. Nothing is packed. The root is measured; the paper's other
nodes have as many candidates and cost the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import phe

from tasks.vertical_xgboost.buckets import bucket_columns
from tasks.vertical_xgboost.candidates import CandidateLayout
from tasks.vertical_xgboost.config import VerticalXGBoostConfig
from tasks.vertical_xgboost.fixed_point import FloatArray, GradientScales
from tasks.vertical_xgboost.histograms import candidate_sums
from tasks.vertical_xgboost.joined import JoinedTable
from tasks.vertical_xgboost.objectives import objective_of
from tasks.vertical_xgboost.rows import PartyTable


@dataclass(frozen=True)
class NaiveNode:
    """What one node costs.

    Attributes
    ----------
    seconds : dict of str to float
        CPU seconds by operation, of all candidates.
    candidates : int
        Of all sources.
    measured : int
        Candidates that were measured; the rest is extrapolated.
    ciphertexts, bytes : int
        Sent by label owners, and on to the split clients.
    largest_error : float
        Of a decrypted total against the sum in clear.
    """

    seconds: dict[str, float]
    candidates: int
    measured: int
    ciphertexts: int
    bytes: int
    largest_error: float


def measure_node(
    tables: Mapping[str, PartyTable],
    joined: JoinedTable,
    config: VerticalXGBoostConfig,
    *,
    base_margin: float,
    most_candidates: int | None = None,
) -> NaiveNode:
    """Encrypt, add and decrypt the sums of the root.

    Parameters
    ----------
    tables : mapping of party to PartyTable
    joined : JoinedTable
        The same rows.
    config : VerticalXGBoostConfig
    base_margin : float
        Prediction before the first tree.
    most_candidates : int, optional
        Measure this many of each source.
    """
    shares = [_shares(table, joined, config, base_margin) for table in tables.values()]
    owners = len(tables)
    seconds: dict[str, float] = {"encrypt": 0.0, "add": 0.0, "decrypt": 0.0}
    measured, error = 0, 0.0
    for source, share in enumerate(shares):
        split_client = (source + 1) % owners
        key, private = phe.generate_paillier_keypair(n_length=config.key_bits)
        chosen = share[:, :most_candidates]
        measured += chosen.shape[1]
        others = [at for at in range(owners) if at != split_client]
        with _timed(seconds, "encrypt"):
            sent = [[key.encrypt(x) for x in chosen[at].ravel().tolist()] for at in others]
        with _timed(seconds, "add"):
            totals = [sum(each[1:], each[0]) for each in zip(*sent, strict=True)]
        with _timed(seconds, "decrypt"):
            read = np.array([private.decrypt(total) for total in totals])
        found = read + chosen[split_client].ravel()
        error = max(error, float(np.abs(found - chosen.sum(axis=0).ravel()).max()))
    candidates = sum(share.shape[1] for share in shares)
    ciphertexts = 2 * candidates * owners  # from all owners but one, and the totals
    return NaiveNode(
        seconds={name: spent * candidates / measured for name, spent in seconds.items()},
        candidates=candidates,
        measured=measured,
        ciphertexts=ciphertexts,
        bytes=ciphertexts * 2 * config.key_bits // 8,
        largest_error=error,
    )


def _shares(
    table: PartyTable, joined: JoinedTable, config: VerticalXGBoostConfig, base_margin: float
) -> FloatArray:
    """Sums of each label owner for the candidates of one source: (owners, candidates, 2)."""
    objective, training = objective_of(config), ~joined.is_evaluation
    buckets, numbers = bucket_columns(table.features, training, max_bin=config.max_bin)
    layout = CandidateLayout.of(buckets)
    margins = np.full(len(joined.labels), base_margin)
    gradients = objective.gradients(margins, joined.labels)
    exponent = max(0, int(np.ceil(np.log2(np.abs(gradients[0]).max()))))
    scales = GradientScales.of(bits=config.fixed_point_bits, gradient_exponent=exponent)
    values = scales.encode(*gradients)
    sums = []
    for owner in range(int(joined.owner.max()) + 1):
        slots = np.where(training & (joined.owner == owner), 0, -1).astype(np.intp)
        whole = candidate_sums(numbers, layout, values, slots, num_nodes=1)[0]
        sums.append(
            np.stack(
                [scales.gradient.decode(whole[:, 0]), scales.hessian.decode(whole[:, 1])], axis=1
            )
        )
    return np.stack(sums)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.process_time()
    yield
    seconds[name] += time.process_time() - start

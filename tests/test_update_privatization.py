"""Whatever an update is, it leaves within the bound or not at all; alone and as a ClientApp mod."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.privacy.client import NUM_CLIENTS, UpdatePrivatization
from tasks.privacy.mechanisms import AdditiveNoise, SecureNoise, SeededNoise
from tasks.privacy.received_update import (
    estimated_noise_to_signal,
    longest_update,
    update_length,
)
from tasks.privacy.update import (
    PrivatizedUpdate,
    clip_by_global_norm,
    l2_norm,
    privatize,
)
from tasks.site.faults import SiteFault

Arrays = dict[str, NDArray[Any]]
NO_NOISE = AdditiveNoise("gaussian", 0.0)
FLOATS = (np.float16, np.float32, np.float64)


def clipped(global_: Arrays, local: Arrays, clip_norm: float, **kwargs: Any) -> PrivatizedUpdate:
    return privatize(
        global_, local, clip_norm=clip_norm, noise=NO_NOISE, source=SecureNoise(), **kwargs
    )


def squared_distance(one: Arrays, other: Arrays) -> Fraction:
    """The exact squared L2 distance: no rounding in the oracle."""
    total = Fraction(0)
    for name, array in one.items():
        for x, y in zip(array.ravel().tolist(), other[name].ravel().tolist(), strict=True):
            total += (Fraction(x) - Fraction(y)) ** 2
    return total


# The bound --------------------------------------------------------------------------------------


@st.composite
def models(draw: st.DrawFn, *, finite: bool = True) -> tuple[Arrays, Arrays]:
    """A global and a trained model: any shapes, types and magnitudes, near or far apart."""
    global_: Arrays = {}
    local: Arrays = {}
    for index in range(draw(st.integers(1, 4))):
        dtype = np.dtype(draw(st.sampled_from(FLOATS)))
        shape = draw(st.sampled_from([(), (0,), (1,), (4,), (2, 3), (2, 0)]))
        size = math.prod(shape)
        limit = float(np.finfo(dtype).max)
        magnitudes = st.sampled_from([0.0, 1e-320, 1e-30, 1e-4, 1.0, 1e8, 1e30, 1e300])
        values = st.tuples(magnitudes, st.floats(-2, 2)).map(lambda pair: pair[0] * pair[1])
        values = values.map(lambda value, limit=limit: min(max(value, -limit), limit))
        before = np.array(draw(st.lists(values, min_size=size, max_size=size)))
        move = draw(st.sampled_from(["near", "anywhere", "nowhere"]))
        after = np.array(draw(st.lists(values, min_size=size, max_size=size)))
        if move == "near":  # a few steps of the type away
            before = before.astype(dtype).astype(np.float64)
            steps = st.lists(st.integers(-5, 5), min_size=size, max_size=size)
            with np.errstate(over="ignore", invalid="ignore"):
                gaps = np.spacing(before.astype(dtype)).astype(np.float64)
                after = before + np.array(draw(steps), dtype=np.float64) * gaps
            after = np.where(np.isfinite(after), np.clip(after, -limit, limit), before)
        elif move == "nowhere":
            after = before
        if not finite and size and draw(st.booleans()):
            after = after.copy()
            after[draw(st.integers(0, size - 1))] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        global_[f"layer.{index}"] = before.astype(dtype).reshape(shape)
        local[f"layer.{index}"] = after.astype(dtype).reshape(shape)
    return global_, local


clip_norms = st.one_of(
    st.floats(1e-6, 1e6),
    st.sampled_from([5e-324, 1e-310, 1e-40, 1e-8, 0.5, 1.0, 8.0, 65504.0, 1e30, 1e300]),
)


@settings(max_examples=200, deadline=None)
@given(models(), clip_norms)
@example(({"w": np.float32([1e8])}, {"w": np.float32([2e8])}), 4.1)  # a step of float32 is 8
@example(({"w": np.float16([2048])}, {"w": np.float16([4096])}), 1.1)
@example(({"w": np.float64([1.7e308])}, {"w": np.float64([-1.7e308])}), 0.5)
@example(({"w": np.float64([0.0] * 100)}, {"w": np.float64([0.1] * 100)}), 1.0)
@example(({"w": np.float64([0.0] * 3)}, {"w": np.float64([1e-320] * 3)}), 1e-320)
@example(({"w": np.float64([0.0] * 2)}, {"w": np.float64([5e-324] * 2)}), 5e-324)
@example(({"w": np.float32([0.0])}, {"w": np.float32([3e38])}), 1e300)
def test_without_noise_the_bound_holds_exactly(
    pair: tuple[Arrays, Arrays], clip_norm: float
) -> None:
    global_, local = pair
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        update = clipped(global_, local, clip_norm)
    for name, array in global_.items():
        assert update.arrays[name].dtype == array.dtype
        assert update.arrays[name].shape == array.shape
        assert np.isfinite(update.arrays[name]).all()
    assert squared_distance(update.arrays, global_) <= Fraction(clip_norm) ** 2
    assert 0 <= update.clipped_norm <= clip_norm
    # As anyone would compute it, if squares do not overflow:
    if 1e-100 < clip_norm < 1e100:
        differences = [
            (update.arrays[n].astype(np.float64) - global_[n].astype(np.float64)).ravel()
            for n in global_
        ]
        assert np.linalg.norm(np.concatenate(differences)) <= clip_norm
        assert math.sqrt(sum(float(d @ d) for d in differences)) <= clip_norm


@settings(max_examples=80, deadline=None)
@given(models(finite=False), clip_norms)
def test_what_is_not_finite_never_leaves(pair: tuple[Arrays, Arrays], clip_norm: float) -> None:
    global_, local = pair
    bad = [name for name, array in local.items() if not np.isfinite(array).all()]
    if bad:
        with pytest.raises(SiteFault) as caught:
            clipped(global_, local, clip_norm)
        assert caught.value.code == "non-finite-update"
        assert all(repr(name) in str(caught.value) for name in bad)
    else:
        assert squared_distance(clipped(global_, local, clip_norm).arrays, global_) <= (
            Fraction(clip_norm) ** 2
        )


@settings(max_examples=80, deadline=None)
@given(models())
def test_an_update_within_the_bound_is_not_shortened(pair: tuple[Arrays, Arrays]) -> None:
    global_, local = pair
    squared = squared_distance(local, global_)
    length = float((Decimal(squared.numerator) / Decimal(squared.denominator)).sqrt())
    if length > 1e307:
        return
    update = clipped(global_, local, length * 1.01 + 1e-320)
    for name, array in local.items():
        limits = np.finfo(array.dtype)
        far = np.maximum(np.abs(array.astype(np.float64)), np.abs(global_[name].astype(np.float64)))
        error = np.abs(update.arrays[name].astype(np.float64) - array.astype(np.float64))
        assert (error <= 2 * float(limits.eps) * far + float(limits.smallest_subnormal)).all()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(-1, 1).filter(lambda x: abs(x) > 1e-6), min_size=1, max_size=20),
    st.sampled_from([1e-300, 1e-150, 1.0, 1e150, 1e300]),
    st.floats(1e-3, 1e3),
)
def test_clipping_keeps_direction_and_reaches_the_bound(
    direction: list[float], magnitude: float, clip_norm: float
) -> None:
    delta = np.array(direction) * magnitude
    out = clipped({"w": np.zeros(len(delta))}, {"w": delta}, clip_norm).arrays["w"]
    unit = np.array(direction) / np.linalg.norm(direction)
    expected = min(magnitude * np.linalg.norm(direction), clip_norm)
    np.testing.assert_allclose(out, unit * expected, rtol=1e-11)


@pytest.mark.parametrize(("dtype", "loss"), [(np.float16, 0.1), (np.float32, 1e-5), (float, 1e-11)])
def test_rounding_within_the_bound_costs_next_to_nothing(dtype: type, loss: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        global_ = {"w": rng.normal(size=300).astype(dtype)}
        local = {"w": (global_["w"] + rng.normal(size=300)).astype(dtype)}
        assert 0.5 * (1 - loss) <= clipped(global_, local, 0.5).clipped_norm <= 0.5


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_norm_is_one_over_all_arrays(dtype: type) -> None:
    global_ = {"a": np.zeros((2, 2), dtype), "b": np.zeros(3, dtype), "c": np.zeros((), dtype)}
    local = {name: np.full_like(array, 10) for name, array in global_.items()}
    update = clipped(global_, local, 0.5)
    together = np.concatenate([array.ravel().astype(float) for array in update.arrays.values()])
    np.testing.assert_allclose(together, 0.5 / math.sqrt(8), rtol=2e-3)
    assert update.clipped_norm == pytest.approx(0.5, rel=2e-3)
    assert update.num_elements == 8


def test_the_arguments_are_not_changed_and_not_shared() -> None:
    global_ = {"w": np.ones(3, np.float32), "n": np.array([4])}
    local = {"w": np.full(3, 9, np.float32), "n": np.array([5])}
    for array in [*global_.values(), *local.values()]:
        array.flags.writeable = False
    update = clipped(global_, local, 1.0)
    assert (global_["w"] == 1).all()
    assert (local["w"] == 9).all()
    assert not any(np.shares_memory(update.arrays[n], global_[n]) for n in global_)


@pytest.mark.parametrize("order", ["<f4", ">f4", ">f8"])
def test_byte_order_and_strides_do_not_matter(order: str) -> None:
    global_ = {"w": np.arange(8).astype(order)[::2]}
    local = {"w": (np.arange(8) * 3).astype(order)[::2]}
    update = clipped(global_, local, 2.0)
    assert update.arrays["w"].dtype == np.dtype(order)
    assert np.linalg.norm(update.arrays["w"] - np.arange(0, 8, 2)) == pytest.approx(2, rel=1e-6)


def test_a_zero_update_gets_its_noise() -> None:
    model = {"w": np.zeros(50_000, np.float32)}
    update = privatize(
        model, model, clip_norm=1.0, noise=AdditiveNoise("gaussian", 0.1), source=SecureNoise()
    )
    assert update.arrays["w"].std() == pytest.approx(0.1, rel=0.05)
    assert update.clipped_norm == 0
    assert update.noise_to_signal == math.inf


def test_noise_is_added_to_the_clipped_update_of_every_floating_array() -> None:
    global_ = {"a": np.full(30_000, 5, np.float32), "b": np.zeros(30_000), "n": np.arange(3)}
    local = {name: array + 1 for name, array in global_.items()}
    noise = AdditiveNoise("laplace", 0.02)
    update = privatize(global_, local, clip_norm=3.0, noise=noise, source=SecureNoise())
    for name in ("a", "b"):
        noised = update.arrays[name].astype(np.float64) - global_[name]
        assert noised.mean() == pytest.approx(3 / math.sqrt(60_000), abs=6 * 0.03 / 30_000**0.5)
        assert noised.std() == pytest.approx(0.02 * math.sqrt(2), rel=0.05)
    correlation = np.corrcoef(update.arrays["a"], update.arrays["b"])[0, 1]
    assert abs(correlation) < 7 / math.sqrt(30_000)
    assert update.noise_sigma == pytest.approx(0.02 * math.sqrt(2))
    expected = 0.02 * math.sqrt(2) * math.sqrt(60_000) / update.clipped_norm
    assert update.noise_to_signal == pytest.approx(expected)


def test_noise_that_overflows_a_type_stays_finite() -> None:
    model = {"w": np.array([60000.0, -60000.0] * 500, np.float16)}
    noise = AdditiveNoise("gaussian", 1e5)
    update = privatize(model, model, clip_norm=1.0, noise=noise, source=SecureNoise())
    assert np.isfinite(update.arrays["w"]).all()
    assert np.abs(update.arrays["w"]).max() == np.finfo(np.float16).max


def test_seeded_noise_is_the_same_again() -> None:
    global_, local = {"w": np.zeros(5)}, {"w": np.ones(5)}
    noise = AdditiveNoise("gaussian", 1.0)
    outs = [
        privatize(
            global_,
            local,
            clip_norm=1.0,
            noise=noise,
            source=SeededNoise(np.random.default_rng(4)),
        ).arrays["w"]
        for _ in range(2)
    ]
    assert np.array_equal(*outs)


# What is refused, and what stays ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16, np.bool_])
def test_integer_and_boolean_buffers_stay_as_received(dtype: type) -> None:
    global_ = {"w": np.zeros(2), "steps": np.array([1, 0, 1], dtype)}
    local = {"w": np.ones(2), "steps": np.array([0, 1, 0], dtype)}
    noise = AdditiveNoise("gaussian", 10.0)
    update = privatize(global_, local, clip_norm=1.0, noise=noise, source=SecureNoise())
    assert np.array_equal(update.arrays["steps"], global_["steps"])
    assert update.arrays["steps"].dtype == dtype
    assert update.num_elements == 2


ZERO, ONE = np.zeros(2, np.float32), np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("global_", "local", "code", "words"),
    [
        ({"a": ZERO}, {}, "mismatched-update", ["'a': missing"]),
        ({"a": ZERO}, {"a": ONE, "z": ONE}, "mismatched-update", ["'z': not in the received"]),
        ({"a": ZERO}, {"a": np.ones(3)}, "mismatched-update", ["'a'", "(3,)", "(2,)"]),
        ({"a": ZERO}, {"a": np.ones((2, 1))}, "mismatched-update", ["'a'", "(2, 1)"]),
        ({"a": ZERO}, {"a": np.ones(2, int)}, "mismatched-update", ["'a'", "int64", "float32"]),
        (
            {"a": ZERO, "b": ZERO},
            {"a": np.ones(3), "c": ONE},
            "mismatched-update",
            ["'a'", "'b'", "'c'"],
        ),
        ({"a": ZERO}, {"a": np.ones(2, complex)}, "unsupported-update", ["'a'", "complex128"]),
        ({"a": ZERO * 1j}, {"a": ONE * 1j}, "unsupported-update", ["'a'", "complex64"]),
        ({"a": np.array(["x"])}, {"a": np.array(["y"])}, "unsupported-update", ["'a'"]),
        ({"a": ZERO}, {"a": np.array([1, None])}, "unsupported-update", ["'a'", "object"]),
        (
            {"a": np.zeros(2, np.longdouble)},
            {"a": np.ones(2, np.longdouble)},
            "unsupported-update",
            ["'a'"],
        ),
        (
            {"bn.running_var": ONE, "running_var": ONE},
            {"bn.running_var": ONE, "running_var": ONE},
            "batch-norm",
            ["'bn.running_var'", "'running_var'", "GroupNorm"],
        ),
        ({"a": ONE * np.nan}, {"a": ONE}, "non-finite-update", ["'a'", "received model"]),
        ({"a": ONE}, {"a": np.float32([1, np.inf])}, "non-finite-update", ["'a'"]),
    ],
)
def test_updates_that_do_not_fit_are_refused_by_name(
    global_: Arrays, local: Arrays, code: str, words: list[str]
) -> None:
    with pytest.raises(SiteFault) as caught:
        clipped(global_, local, 1.0)
    assert caught.value.code == code
    assert all(word in str(caught.value) for word in words)


def test_faults_of_many_arrays_stay_readable() -> None:
    global_ = {str(i): ZERO for i in range(500)}
    with pytest.raises(SiteFault, match="and 492 more") as caught:
        clipped(global_, {}, 1.0)
    assert len(caught.value.reasons) == 9


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, math.inf, True, None])
def test_a_bound_that_is_none_is_refused(clip_norm: Any) -> None:
    with pytest.raises(ValueError, match=r"clip_norm = .*: must be a finite number > 0"):
        clipped({"a": ZERO}, {"a": ONE}, clip_norm)


def test_models_without_floating_elements_pass() -> None:
    model: Arrays = {"n": np.array([3]), "none": np.zeros((0, 4), np.float32)}
    update = clipped(model, model, 1.0)
    assert update.arrays["n"] == 3
    assert update.arrays["none"].shape == (0, 4)
    assert clipped({}, {}, 1.0).arrays == {}


# Another clipping -------------------------------------------------------------------------------


def test_another_clipping_is_used_and_is_held_to_the_bound() -> None:
    def per_array(deltas: Sequence[Any], bound: float) -> list[Any]:
        share = bound / math.sqrt(len(deltas))
        return [clip_by_global_norm([delta], share)[0] for delta in deltas]

    global_ = {"a": np.zeros(2), "b": np.zeros(2)}
    local = {"a": np.array([300.0, 400.0]), "b": np.array([0.03, 0.04])}
    out = clipped(global_, local, 1.0, clip=per_array).arrays
    np.testing.assert_allclose(out["a"], np.array([0.6, 0.8]) / math.sqrt(2), rtol=1e-9)
    np.testing.assert_allclose(out["b"], [0.03, 0.04], rtol=1e-9)

    def does_nothing(deltas: Sequence[Any], bound: float) -> Sequence[Any]:
        return deltas

    out = clipped(global_, local, 1.0, clip=does_nothing).arrays
    assert np.linalg.norm([out["a"], out["b"]]) == pytest.approx(1.0)
    assert np.linalg.norm([out["a"], out["b"]]) <= 1.0


@pytest.mark.parametrize(
    "broken",
    [
        lambda deltas, bound: deltas[:1],
        lambda deltas, bound: [delta.reshape(-1, 1) for delta in deltas],
        lambda deltas, bound: [delta / 0.0 for delta in deltas],
    ],
)
def test_a_broken_clipping_lets_nothing_out(broken: Any) -> None:
    global_ = {"a": np.zeros(2), "b": np.zeros(2)}
    with np.errstate(divide="ignore", invalid="ignore"), pytest.raises(SiteFault) as caught:
        clipped(global_, {"a": np.zeros(2), "b": np.ones(2)}, 1.0, clip=broken)
    assert caught.value.code == "invalid-clipping"


# What the server can tell -----------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0])
def test_the_server_estimates_the_ratio_from_the_noised_update(
    mechanism: Any, ratio: float
) -> None:
    d = 20_000
    rng = np.random.default_rng(3)
    global_ = {"w": rng.normal(size=d).astype(np.float32), "n": np.array([1])}
    local = {"w": global_["w"] + rng.normal(size=d).astype(np.float32), "n": np.array([9])}
    scale = ratio / math.sqrt(d) / (math.sqrt(2) if mechanism == "laplace" else 1)
    noise = AdditiveNoise(mechanism, scale)
    update = privatize(global_, local, clip_norm=1.0, noise=noise, source=SeededNoise(rng))
    assert update.noise_to_signal == pytest.approx(ratio, rel=1e-4)
    estimate = estimated_noise_to_signal(global_, update.arrays, noise)
    assert estimate == pytest.approx(ratio, rel=0.05)


def test_estimates_at_the_edges() -> None:
    zero, one = {"w": np.zeros(4)}, {"w": np.ones(4)}
    quiet, loud = AdditiveNoise("gaussian", 0.0), AdditiveNoise("gaussian", 1e200)
    assert estimated_noise_to_signal(zero, one, quiet) == 0
    assert estimated_noise_to_signal(zero, zero, quiet) == math.inf
    assert estimated_noise_to_signal(zero, one, loud) == math.inf
    huge = {"w": np.full(4, 1.7e308)}
    back = {"w": np.full(4, -1.7e308)}
    assert estimated_noise_to_signal(huge, back, loud) == 0
    assert l2_norm([]) == 0


# The mod ----------------------------------------------------------------------------------------

NODE = 5


@pytest.fixture(autouse=True)
def task_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Flower wants to know of the process before it lets a message be built."""
    for name, value in (("_run_id", 1), ("_task_id", 2), ("_node_id", 3)):
        monkeypatch.setattr(TaskIdentity, name, value)


def context() -> Context:
    return Context(run_id=1, node_id=NODE, node_config={}, state=RecordDict(), run_config={})


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def request(message_type: str = "train", **config: Any) -> Message:
    content = RecordDict(
        {"arrays": record({"w": np.zeros(4, np.float32)}), "config": ConfigRecord(config)}
    )
    return Message(content, dst_node_id=NODE, message_type=message_type)


def app_with(mod: UpdatePrivatization, trained: float = 100.0, per_function: bool = False) -> Any:
    """A ClientApp whose every function replies the arrays of the message plus something."""
    app = ClientApp(mods=[] if per_function else [mod])

    def add(message: Message, _: Context) -> Message:
        arrays = {
            name: array.numpy() + np.float32(trained)
            for name, array in message.content["arrays"].items()  # type: ignore[union-attr]
        }
        metrics = MetricRecord({"num-examples": 7})
        content = RecordDict({"arrays": record(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    app.train(mods=[mod] if per_function else None)(add)
    app.train("again", mods=[mod] if per_function else None)(add)
    app.evaluate()(add)
    app.query()(add)
    return app


def returned(reply: Message) -> NDArray[Any]:
    return reply.content.array_records["arrays"]["w"].numpy()


@pytest.mark.parametrize("message_type", ["train", "train.again"])
@pytest.mark.parametrize("per_function", [False, True])
def test_the_mod_privatizes_training_replies(message_type: str, per_function: bool) -> None:
    mod = UpdatePrivatization(clip_norm=1.0, noise_multiplier=0.0)
    app = app_with(mod, per_function=per_function)
    reply = app(request(message_type, **{NUM_CLIENTS: 3}), context())
    np.testing.assert_allclose(returned(reply), 0.5, rtol=1e-6)
    assert reply.content.metric_records["metrics"]["num-examples"] == 7
    assert mod.last_update is not None
    assert mod.last_update.clipped_norm == pytest.approx(1.0)


@pytest.mark.parametrize("message_type", ["evaluate", "query"])
def test_other_messages_pass(message_type: str) -> None:
    mod = UpdatePrivatization(clip_norm=1.0, noise_multiplier=1.0)
    assert (returned(app_with(mod)(request(message_type), context())) == 100).all()


@pytest.mark.parametrize(("fixed", "told", "used"), [(None, 4, 4), (1, 4, 1), (9, None, 9)])
def test_the_number_of_clients_is_the_messages_or_the_fixed_one(
    fixed: int | None, told: int | None, used: int
) -> None:
    mod = UpdatePrivatization(clip_norm=2.0, noise_multiplier=3.0, num_clients=fixed)
    config = {} if told is None else {NUM_CLIENTS: told}
    assert not app_with(mod)(request(**config), context()).has_error()
    assert mod.last_update is not None
    assert mod.last_update.noise_sigma == pytest.approx(3 * 2 / math.sqrt(used))


@pytest.mark.parametrize("told", [None, 0, -3, 2.0, True, "3", b"3", [3], 1001, 10**18])
def test_a_server_that_does_not_say_how_many_clients_gets_no_update(told: Any) -> None:
    mod = UpdatePrivatization(clip_norm=1.0, noise_multiplier=1.0)
    trained: list[str] = []
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, _: Context) -> Message:
        trained.append("yes")
        return Message(message.content, reply_to=message)

    config = {} if told is None else {NUM_CLIENTS: told}
    reply = app(request(**config), context())
    assert reply.has_error()
    assert not reply.has_content()
    assert "number-of-clients: " in str(reply.error.reason)
    assert "num_clients=1 in the mod is the safe choice" in str(reply.error.reason)
    assert not trained  # refused before any work


def test_two_numbers_of_clients_are_refused() -> None:
    message = request(**{NUM_CLIENTS: 2})
    message.content["more"] = ConfigRecord({NUM_CLIENTS: 50})
    mod = UpdatePrivatization(clip_norm=1.0, noise_multiplier=1.0)
    assert "has 2 values" in str(app_with(mod)(message, context()).error.reason)


@pytest.mark.parametrize(
    ("trained", "code"),
    [
        (RecordDict(), "number-of-records"),
        (RecordDict({"a": ArrayRecord(), "b": ArrayRecord()}), "number-of-records"),
        (RecordDict({"a": record({"v": np.zeros(4, np.float32)})}), "mismatched-update"),
        (RecordDict({"a": record({"w": np.zeros(5, np.float32)})}), "mismatched-update"),
        (RecordDict({"a": record({"w": np.full(4, np.nan)})}), "non-finite-update"),
        (
            RecordDict({"a": ArrayRecord({"w": Array("float32", (4,), "numpy.ndarray", b"?")})}),
            "internal",
        ),
    ],
)
def test_a_reply_that_cannot_be_privatized_becomes_an_error(trained: RecordDict, code: str) -> None:
    app = ClientApp(mods=[UpdatePrivatization(clip_norm=1.0, noise_multiplier=1.0)])
    app.train()(lambda message, _: Message(trained, reply_to=message))
    reply = app(request(**{NUM_CLIENTS: 2}), context())
    assert reply.has_error()
    assert not reply.has_content()
    assert str(reply.error.reason).startswith(f"{code}: ")


def test_messages_without_one_model_or_with_batch_norm_are_refused_before_training() -> None:
    def never(message: Message, _: Context) -> Message:
        raise AssertionError("trained all the same")

    app = ClientApp(mods=[UpdatePrivatization(clip_norm=1.0, noise_multiplier=1.0)])
    app.train()(never)
    config = ConfigRecord({NUM_CLIENTS: 2})
    for content, code in (
        (RecordDict({"config": config}), "number-of-records"),
        (RecordDict({"config": config, "a": ArrayRecord(), "b": ArrayRecord()}), "number-of-rec"),
        (RecordDict({"config": config, "a": record({"x.running_var": np.ones(1)})}), "batch-norm"),
    ):
        reply = app(Message(content, dst_node_id=NODE, message_type="train"), context())
        assert str(reply.error.reason).startswith(code)


def test_an_error_of_the_app_passes_and_an_exception_is_not_swallowed() -> None:
    app = ClientApp(mods=[UpdatePrivatization(clip_norm=1.0, noise_multiplier=1.0)])
    app.train()(lambda message, _: Message(Error(7, "no rows"), reply_to=message))
    assert app(request(**{NUM_CLIENTS: 2}), context()).error.reason == "no rows"

    @app.train("broken")
    def broken(message: Message, _: Context) -> Message:
        raise RuntimeError("at work")

    with pytest.raises(RuntimeError, match="at work"):
        app(request("train.broken", **{NUM_CLIENTS: 2}), context())


def test_an_app_that_overwrites_the_received_model_is_measured_from_what_was_received() -> None:
    app = ClientApp(mods=[UpdatePrivatization(clip_norm=1.0, noise_multiplier=0.0)])

    @app.train()
    def train(message: Message, _: Context) -> Message:
        message.content["arrays"] = record({"w": np.full(4, 50, np.float32)})
        return Message(message.content, reply_to=message)

    np.testing.assert_allclose(
        returned(app(request(**{NUM_CLIENTS: 1}), context())), 0.5, rtol=1e-6
    )


def test_the_mod_refuses_bad_settings_when_it_is_built() -> None:
    with pytest.raises(ValueError, match=r"clip_norm = 0.0.*; noise_multiplier = -1"):
        UpdatePrivatization(clip_norm=0.0, noise_multiplier=-1)
    with pytest.raises(ValueError, match="num_clients = 0: must be a whole number >= 1"):
        UpdatePrivatization(clip_norm=1.0, noise_multiplier=1.0, num_clients=0)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_the_estimated_ratio_is_never_less_than_the_clip_norm_allows(mechanism: str) -> None:
    """With much noise, chance alone is longer than any clipped update."""
    noise = AdditiveNoise(mechanism, 10.0)  # type: ignore[arg-type]
    global_ = {"w": np.zeros(500)}
    truth = noise.standard_deviation * math.sqrt(500) / 0.5
    ratios = []
    for seed in range(40):
        update = privatize(
            global_,
            {"w": np.ones(500)},
            clip_norm=0.5,
            noise=noise,
            source=SeededNoise(np.random.default_rng(seed)),
        )
        assert update.noise_to_signal == pytest.approx(truth)
        ratios.append(estimated_noise_to_signal(global_, update.arrays, noise, clip_norm=0.5))
    assert min(ratios) >= truth * (1 - 1e-12)
    assert sum(math.isfinite(ratio) for ratio in ratios) >= 5


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("size", "scale"), [(1, 1.0), (1, 1e-4), (2000, 0.0), (2000, 0.3)])
def test_no_honest_update_is_longer_than_it_may_be(
    mechanism: str, dtype: type, size: int, scale: float
) -> None:
    rng = np.random.default_rng(5)
    noise = AdditiveNoise(mechanism, scale)  # type: ignore[arg-type]
    global_ = {"w": rng.normal(size=size).astype(dtype) * dtype(100), "n": np.array([3])}
    local = {"w": global_["w"] + dtype(2), "n": np.array([4])}
    for _ in range(50):
        update = privatize(
            global_, local, clip_norm=0.7, noise=noise, source=SeededNoise(rng)
        ).arrays
        longest = longest_update(global_, noise, clip_norm=0.7)
        assert update_length(global_, update) <= longest
        # Not so generous that it says nothing.
        rounding = float(np.finfo(dtype).eps) * float(np.linalg.norm(global_["w"].astype(float)))
        assert longest <= 0.701 + rounding + 100 * scale + 1.5 * scale * math.sqrt(size)

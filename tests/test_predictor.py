"""The model file: what is read back predicts the same, and what is wrong is named."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedapp.simulation import simulate
from tasks.survival.baseline import BaselineHazard
from tasks.survival.config import SurvivalConfig
from tasks.survival.models import arrays_of, build, registry
from tasks.survival.predictor import Architecture, SurvivalPredictor
from tasks.survival.standardization import Standardizer
from tests.patients import patients

GRADES = {"I": 1, "II": 2, "III": 3}


@pytest.fixture(scope="module")
def predictor():
    model = build("DeepSurv", n_features=3, hidden_layers=(8, 4), dropout=0.2, seed=3)
    grid = np.linspace(0, 10, 6)
    return SurvivalPredictor(
        feature_names=("age", "grade", "size"),
        encoding={"grade": GRADES},
        standardizer=Standardizer(np.array([50.0, 2.0, 20.0]), np.array([10.0, 0.5, 8.0])),
        architecture=Architecture("DeepSurv", (8, 4), 0.2),
        arrays=arrays_of(model.network),
        baseline=BaselineHazard(grid, 0.3 * grid**1.2, center=0.1),
        metadata={"config": {"rounds": 30}, "sites": ["Kiel", "Ulm"], "c-index": 0.7},
    )


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "size": rng.normal(20, 8, 40),
            "other": "text",
            "grade": rng.choice(list(GRADES), 40),
            "age": rng.integers(20, 80, 40),
        }
    )


def perceptron(arrays, values):
    """The network by hand: layers with ReLU, dropout off."""
    weights = [array.astype(float) for array in arrays.values() if array.ndim == 2]
    biases = [array.astype(float) for array in arrays.values() if array.ndim == 1]
    for weight, bias in zip(weights[:-1], biases, strict=True):
        values = np.maximum(values @ weight.T + bias, 0)
    return (values @ weights[-1].T)[:, 0]


def test_predictions_are_the_networks_and_the_baselines(predictor, frame):
    features = np.column_stack([frame["age"], frame["grade"].map(GRADES), frame["size"]])
    standardized = (features - predictor.standardizer.mean) / predictor.standardizer.scale
    expected = perceptron(predictor.arrays, standardized)
    assert np.std(expected) > 0.01
    risk = predictor.risk(frame)
    np.testing.assert_allclose(risk, expected, rtol=1e-4, atol=1e-5)

    hazard = np.interp([0, 1.5, 10], predictor.baseline.grid, predictor.baseline.cumulative)
    survival = predictor.survival(frame, [0, 1.5, 10])
    np.testing.assert_allclose(survival, np.exp(-np.outer(np.exp(risk - 0.1), hazard)), rtol=1e-12)
    assert survival.shape == (40, 3)


def test_a_file_gives_back_everything(predictor, frame, tmp_path):
    path = tmp_path / "model.npz"
    predictor.save(path)
    read = SurvivalPredictor.load(path)
    np.testing.assert_array_equal(read.risk(frame), predictor.risk(frame))
    np.testing.assert_array_equal(read.survival(frame, [1, 2]), predictor.survival(frame, [1, 2]))
    for name in ("feature_names", "encoding", "architecture", "metadata"):
        assert getattr(read, name) == getattr(predictor, name)
    assert {name: array.dtype for name, array in read.arrays.items()} == {
        name: array.dtype for name, array in predictor.arrays.items()
    }
    assert read.baseline.center == 0.1
    assert [file.name for file in tmp_path.iterdir()] == ["model.npz"]


def test_the_file_opens_without_pickle(predictor, tmp_path):
    predictor.save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz", allow_pickle=False) as archive:
        header = json.loads(archive["header"].tobytes())
        assert all(archive[name].dtype != object for name in archive.files)
    assert header["format"] == "survival-predictor"
    assert header["encoding"] == {"grade": GRADES}


def test_reading_needs_no_torch(predictor, tmp_path):
    predictor.save(tmp_path / "model.npz")
    code = (
        "import sys; from tasks.survival.predictor import SurvivalPredictor; "
        f"SurvivalPredictor.load({str(tmp_path / 'model.npz')!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_reader_never_sees_half_a_file(predictor, tmp_path):
    path = tmp_path / "model.npz"
    predictor.save(path)
    done = threading.Event()

    def rewrite():
        for _ in range(25):
            predictor.save(path)
        done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    reads = 0
    while not done.is_set():
        SurvivalPredictor.load(path)
        reads += 1
    writer.join()
    assert reads > 0


def test_what_cannot_be_written_leaves_the_old_file(predictor, tmp_path):
    path = tmp_path / "model.npz"
    predictor.save(path)
    before = path.read_bytes()
    for value in (float("nan"), {1, 2}):
        with pytest.raises(ValueError, match="metadata is not JSON"):
            replace(predictor, metadata={"value": value}).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.npz"]
    with pytest.raises(FileNotFoundError):
        predictor.save(tmp_path / "nowhere" / "model.npz")


def rewritten(path, *, header=None, drop=(), **arrays):
    """The file with some members changed."""
    with np.load(path) as archive:
        members = {name: archive[name] for name in archive.files if name not in drop}
    text = {**json.loads(members["header"].tobytes()), **(header or {})}
    members["header"] = np.frombuffer(json.dumps(text).encode(), np.uint8)
    np.savez(path, **{**members, **{name.replace("_", "/"): a for name, a in arrays.items()}})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"header": {"version": 3}}, "format version 3 is newer than this program"),
        ({"header": {"format": "x"}}, "no survival model file"),
        ({"header": {"hidden-layers": ["8"]}}, "hidden-layers"),
        ({"header": {"encoding": [], "dropout": "x"}}, "encoding.*dropout"),
        ({"drop": ("baseline/grid", "standardizer/mean")}, "mean is missing.*grid is missing"),
        ({"drop": ("network/net.0.linear.weight",)}, r"network/net\.0\.linear\.weight is missing"),
        ({"baseline_cumulative": np.full(6, np.inf)}, "baseline/cumulative holds values that are"),
        ({"baseline_cumulative": np.arange(6.0)[::-1]}, "cumulative hazard must be finite and asc"),
        ({"standardizer_scale": np.zeros(3)}, "scale"),
        ({"standardizer_mean": np.array(["a"])}, "standardizer/mean holds no numbers"),
        ({"header": {"feature-names": ["age"]}}, "1 feature names.*3 columns.*encoded columns"),
    ],
)
def test_a_file_that_is_not_sound_is_refused_by_name(predictor, tmp_path, change, words):
    path = tmp_path / "model.npz"
    predictor.save(path)
    rewritten(path, **change)
    with pytest.raises(ValueError, match=rf"(?s)model\.npz: .*{words}"):
        SurvivalPredictor.load(path)


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def archive_of(content, name="header.npy"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


class Explosive:
    def __reduce__(self):
        return (exec, ("raise SystemExit('pickle was run')",))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"time,event\n1,0\n",
        b"\x93NUMPY",
        pickle.dumps(Explosive()),
        npy(np.arange(3)),
        npy(np.array([Explosive()], dtype=object)),
        archive_of(npy(np.array([Explosive()], dtype=object))),
        archive_of(b"text", "word/document.xml"),
        archive_of(npy(np.frombuffer(b"[1]", np.uint8))),
        archive_of(npy(np.frombuffer(b"{", np.uint8))),
    ],
)
def test_other_files_are_no_model_files(tmp_path, content):
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.npz: this is no survival model file"):
        SurvivalPredictor.load(path)


def test_a_damaged_file_is_refused(predictor, tmp_path):
    path = tmp_path / "model.npz"
    predictor.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="no survival model file"):
        SurvivalPredictor.load(path)
    at = whole.index(b"network/net.0.linear.weight.npy") + 60
    path.write_bytes(
        whole[:at] + bytes(byte ^ 255 for byte in whole[at : at + 8]) + whole[at + 8 :]
    )
    with pytest.raises(ValueError, match="damaged"):
        SurvivalPredictor.load(path)
    with pytest.raises(FileNotFoundError):
        SurvivalPredictor.load(tmp_path / "none.npz")


def test_all_faults_of_a_table_are_named_at_once(predictor, frame):
    bad = frame.drop(columns="size")
    bad["grade"] = bad["grade"].where(bad.index > 2, "IV")
    bad.loc[5, "grade"] = None
    bad["age"] = bad["age"].astype(object)
    bad.loc[7, "age"] = "secret"
    bad.loc[8, "age"] = np.inf
    with pytest.raises(ValueError, match="column") as fault:
        predictor.risk(bad)
    assert str(fault.value).split("; ") == [
        'column "age": 1 of 40 values are not numbers',
        'column "age": 1 of 40 values are infinite',
        'column "grade": 1 of 40 values are missing',
        'column "grade": 3 of 40 values are none of I, II, III',
        'column "size" is missing',
    ]


@pytest.mark.parametrize(
    ("column", "values", "fault"),
    [
        ("age", ["1"] * 40, "40 of 40 values are not numbers"),
        ("age", [np.nan] * 40, "40 of 40 values are missing"),
        ("age", pd.array([1, None] * 20, dtype="Int64"), "20 of 40 values are missing"),
        ("grade", [4] + [1] * 39, "1 of 40 values are none of I, II, III"),
        ("grade", pd.Categorical(["II", "V"] * 20), "20 of 40 values are none of"),
    ],
)
def test_a_bad_column_is_named_with_a_count(predictor, frame, column, values, fault):
    with pytest.raises(ValueError, match=f'column "{column}": {fault}'):
        predictor.risk(frame.assign(**{column: values}))


def test_repeated_columns_are_refused(predictor, frame):
    with pytest.raises(ValueError, match='column "age" repeats'):
        predictor.risk(pd.concat([frame, frame[["age"]]], axis=1))


def test_categories_may_be_encoded_already_or_of_another_type(predictor, frame):
    expected = predictor.risk(frame)
    for values in (
        frame["grade"].map(GRADES),
        frame["grade"].astype("category"),
        frame["grade"].astype("string"),
    ):
        np.testing.assert_array_equal(predictor.risk(frame.assign(grade=values)), expected)
    ages = frame["age"]
    for values in (ages.astype("Int64"), ages.astype(object), ages.astype(float)):
        np.testing.assert_array_equal(predictor.risk(frame.assign(age=values)), expected)


def test_no_rows_give_no_predictions(predictor, frame):
    assert predictor.risk(frame[:0]).shape == (0,)
    assert predictor.survival(frame[:0], [1, 2]).shape == (0, 2)


def test_times_beyond_the_horizon_are_refused(predictor, frame):
    with pytest.raises(ValueError, match=r"1 of 2 times lie outside 0\.\.10"):
        predictor.survival(frame, [5, 11])


def test_the_file_has_all_that_a_model_is_built_from(predictor, tmp_path, monkeypatch):
    """A model of one's own may build another network by any part of its design."""
    config = SurvivalConfig.model_validate(
        {
            "model": "DeepSurv",
            "hidden-layers": "8,4",
            "deephit-alpha": 0.7,
            "deephit-sigma": 0.4,
            "controls": 3,
        }
    )
    architecture = Architecture.of(config, np.array([0.0, 2.0, 10.0]))
    replace(predictor, architecture=architecture).save(tmp_path / "model.npz")
    read = SurvivalPredictor.load(tmp_path / "model.npz")
    assert read.architecture == architecture
    designs = []
    built = registry._BUILDERS["DeepSurv"]
    monkeypatch.setitem(
        registry._BUILDERS, "DeepSurv", lambda design: designs.append(design) or built(design)
    )
    assert read._model.network is not None
    (design,) = designs
    assert (design.n_features, design.hidden_layers, design.dropout) == (3, (8, 4), 0.3)
    assert (design.deephit_alpha, design.deephit_sigma, design.controls) == (0.7, 0.4, 3)
    assert design.horizon == 10.0
    np.testing.assert_array_equal(design.cuts, [0.0, 2.0, 10.0])


def test_arrays_of_another_network_are_refused(predictor, frame):
    other = replace(predictor, architecture=Architecture("DeepSurv", (8, 5), 0.2))
    with pytest.raises(ValueError, match="arrays do not fit the model"):
        other.risk(frame)


def test_parts_that_do_not_fit_are_refused_all_at_once(predictor):
    arrays = {**predictor.arrays, "net.0.linear.weight": np.full((8, 3), np.nan)}
    with pytest.raises(ValueError, match="feature name") as fault:
        replace(predictor, feature_names=("a", "a"), arrays=arrays)
    lines = str(fault.value).split("; ")
    assert "a feature name appears twice" in lines
    assert "2 feature names, but means and scales of 3 columns" in lines
    assert "encoded columns that are no features: grade" in lines
    assert "array net.0.linear.weight holds values that are not finite" in lines


def test_a_file_of_version_1_is_read(predictor, frame, tmp_path):
    """Which has no cuts."""
    path = tmp_path / "model.npz"
    predictor.save(path)
    with np.load(path) as archive:
        members = {name: archive[name] for name in archive.files}
    header = json.loads(members["header"].tobytes())
    assert header["version"] == 2
    for name in ("label-cuts", "deephit-alpha", "deephit-sigma", "controls"):
        del header[name]
    members["header"] = np.frombuffer(json.dumps({**header, "version": 1}).encode(), np.uint8)
    np.savez(path, **members)
    read = SurvivalPredictor.load(path)
    np.testing.assert_array_equal(read.survival(frame, [1, 2]), predictor.survival(frame, [1, 2]))


def test_numbers_that_train_are_numbers_that_predict(tmp_path: Path) -> None:
    """Columns of objects: decimals, and numpy's truth values."""
    frames = [patients(40, seed=seed) for seed in range(2)]
    for frame in frames:
        frame["x1"] = [Decimal(str(round(value, 3))) for value in frame["x1"]]
        frame["x2"] = np.array([np.bool_(value > 0) for value in frame["x2"]], dtype=object)
    config = {"survival.rounds": 1, "report": False, "run-dir": str(tmp_path)}
    result = simulate("survival", sites=frames, config=config)
    assert result.summary["status"] == "ok"
    predictor = SurvivalPredictor.load(result.run_folder / "model.npz")
    plain = frames[0].assign(
        x1=frames[0]["x1"].astype(float), x2=frames[0]["x2"].astype(bool).astype(float)
    )
    np.testing.assert_array_equal(predictor.risk(frames[0]), predictor.risk(plain))

"""What TensorBoard and MLflow are told is what the run recorded."""

import pytest
from federations import task

import pagefl
from pagefl.reports.trackers import MlFlow, TensorBoard, numbers, tracker


def test_numbers_are_all_but_the_round():
    record = {
        "round": 3,
        "seconds": 0.5,
        "global_loss": None,
        "bias": "1:1",
        "agents": {"server_critic": 2},
        "flag": True,
    }
    assert numbers(record) == {"seconds": 0.5, "agents.server_critic": 2.0}


def test_tensorboard_has_every_round(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = TensorBoard(tmp_path / "board", "rounds = 3")
    run = pagefl.run(task=task(), players="page", observe=board.observe, workers=2)
    board.close()
    events = accumulator.EventAccumulator(str(tmp_path / "board")).Reload()
    found = [(event.step, event.value) for event in events.Scalars("global_accuracy")]
    assert [step for step, _ in found] == [1, 2, 3]
    assert [value for _, value in found] == pytest.approx([entry["global_accuracy"] for entry in run.rounds])
    assert "payoffs/server" in events.Tags()["scalars"]


@pytest.mark.slow
def test_mlflow_has_every_round(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    flow = MlFlow(tmp_path / "mlflow", "rounds = 3", name="a run")
    run = pagefl.run(task=task(), algorithm="fedavg", observe=flow.observe)
    flow.close()
    history = flow.client.get_metric_history(flow.run_id, "local_accuracy")
    assert [metric.step for metric in history] == [1, 2, 3]
    assert [metric.value for metric in history] == pytest.approx(
        [entry["local_accuracy"] for entry in run.rounds]
    )
    assert flow.client.get_run(flow.run_id).info.status == "FINISHED"
    assert [file.path for file in flow.client.list_artifacts(flow.run_id)] == ["spec.toml"]


def test_an_unknown_tracker_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(pagefl.UserError, match="--track wandb: expected tensorboard or mlflow"):
        tracker("wandb", tmp_path, "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        pagefl.UserError, match=r"mlflow is not installed; `pip install \"pagefl\[mlflow\]\"` brings it"
    ):
        tracker("mlflow", tmp_path, "")

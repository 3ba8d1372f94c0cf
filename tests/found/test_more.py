"""transformers, DeepSpeed, datasets and flax, each as its quick start begins."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.multihost(ranks=2, backend="gloo")
def test_transformers_trains_and_saves(world, shared_tmp_path) -> None:
    """A Trainer that saves every second step and resumes."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        vocab_size=8,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
    )
    rows = [{"input_ids": [1, 2], "labels": 0}] * 8

    def make_trainer() -> Trainer:
        arguments = TrainingArguments(
            str(shared_tmp_path / "run"),
            per_device_train_batch_size=2,
            num_train_epochs=1,
            save_steps=2,
            save_total_limit=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        return Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows)

    make_trainer().train()
    make_trainer().train(resume_from_checkpoint=True)


@pytest.mark.multihost(ranks=2, backend="gloo")
def test_deepspeed_saves_and_loads(world, shared_tmp_path) -> None:
    """A step, a checkpoint, and a restore."""
    import deepspeed

    deepspeed.ops.__compatible_ops__ = {}  # compiling takes minutes
    model = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
        dist_init_required=False,
    )
    loss = engine(torch.ones(2, 4)).sum()
    engine.backward(loss)
    engine.step()
    engine.save_checkpoint(str(shared_tmp_path), tag="one")
    engine.load_checkpoint(str(shared_tmp_path))


@pytest.mark.multihost(ranks=2, backend="gloo")
def test_datasets_are_mapped_by_the_main_process_first(world, shared_tmp_path) -> None:
    """The usual way to share the cache of `map`."""
    import datasets
    from accelerate import PartialState

    state = PartialState(cpu=True)
    file = shared_tmp_path / "rows.json"
    with state.main_process_first():
        if state.is_main_process:
            file.write_text('{"x": 1}\n{"x": 2}\n')
        rows = datasets.load_dataset(
            "json", data_files=str(file), cache_dir=str(shared_tmp_path / "cache"), split="train"
        )
        rows = rows.map(lambda row: {"y": row["x"] + 1})
    state.wait_for_everyone()
    assert rows["y"] == [2, 3]


@pytest.mark.multihost(ranks=2, backend="jax")
def test_flax_saves_and_restores(world, shared_tmp_path) -> None:
    """The checkpoints of flax.training, which all processes write."""
    from flax.training import checkpoints
    from jax.experimental import multihost_utils
    from test_orbax import make_state

    multihost_utils.sync_global_devices("start")
    state = make_state()
    checkpoints.save_checkpoint_multiprocess(str(shared_tmp_path), state, step=1)
    checkpoints.restore_checkpoint(str(shared_tmp_path), state)


@pytest.mark.multihost(ranks=2, backend="gloo")
def test_transformers_goes_on_from_the_newest(world, shared_tmp_path) -> None:
    """A second Trainer goes on from the newest of two checkpoints."""
    from transformers import Trainer, TrainingArguments

    class Squares(Trainer):
        def compute_loss(self, model, inputs, **_: object) -> torch.Tensor:
            return model(inputs["input"]).square().mean()

    def make_trainer(max_steps: int) -> Trainer:
        arguments = TrainingArguments(
            str(shared_tmp_path / "run"),
            per_device_train_batch_size=2,
            max_steps=max_steps,
            save_steps=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1, bias=False)
        return Squares(model, arguments, train_dataset=[{"input": [1.0]}] * 32)

    make_trainer(2).train()
    trainer = make_trainer(4)
    trainer.train(resume_from_checkpoint=True)
    world.same("step", trainer.state.global_step)
    world.same("weights", trainer.model)


@pytest.mark.multihost(ranks=2, backend="gloo")
def test_deepspeed_goes_on_from_the_latest(world, shared_tmp_path) -> None:
    """A second engine loads the latest of two checkpoints, and trains on."""
    import deepspeed

    deepspeed.ops.__compatible_ops__ = {}  # compiling takes minutes

    def make_engine() -> tuple:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            config={"train_micro_batch_size_per_gpu": 2},
            dist_init_required=False,
        )
        return engine

    def step(engine) -> None:
        engine.backward(engine(torch.ones(2, 4)).sum())
        engine.step()

    engine = make_engine()
    for tag in ("one", "two"):
        step(engine)
        engine.save_checkpoint(str(shared_tmp_path), tag=tag)
    engine = make_engine()
    engine.load_checkpoint(str(shared_tmp_path))
    step(engine)
    world.same("steps", engine.global_steps)
    world.same("weights", engine.module)


@pytest.mark.multihost(ranks=2, backend="jax")
def test_flax_goes_on_from_the_newest(world, shared_tmp_path) -> None:
    """A restart restores the newest of two checkpoints, or begins anew if there is none."""
    import jax
    import numpy as np
    from flax.training import checkpoints
    from jax.experimental import multihost_utils
    from test_orbax import make_state

    multihost_utils.sync_global_devices("start")
    for step in (1, 2):
        state = jax.tree.map(lambda each, step=step: each * step, make_state())
        checkpoints.save_checkpoint_multiprocess(str(shared_tmp_path), state, step=step, keep=2)
    restored = checkpoints.restore_checkpoint(str(shared_tmp_path), make_state())
    world.same("weights", np.asarray(restored["w"].addressable_shards[0].data))


@pytest.mark.multihost(ranks=2, backend="gloo")
def test_torchmetrics_are_computed_of_all_data(world) -> None:
    """Each rank updates a metric with the batches of its own, and all compute it."""
    from torch.utils.data import DataLoader, TensorDataset
    from torchmetrics.classification import BinaryAUROC

    scores = torch.tensor([0.1, 0.9, 0.8, 0.2]) + 0.01 * world.rank
    rows = TensorDataset(scores, torch.tensor([0, 1, 1, 0], dtype=torch.int32))
    metric = BinaryAUROC()
    for found, labels in DataLoader(rows, batch_size=2):
        metric.update(found, labels)
    world.same("AUROC", metric.compute())

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

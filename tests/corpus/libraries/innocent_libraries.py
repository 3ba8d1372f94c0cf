"""Programs of libraries that look like hangs for a while, and end well."""

from __future__ import annotations

import time
from datetime import timedelta

import datasets
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets.distributed import split_dataset_by_node
from expectation import innocent
from hang_accelerate import make_trainer, train_step
from hang_fsdp import sharded, stage
from hang_lightning import Model, loader
from hang_lightning import make_trainer as make_lightning_trainer
from hang_rpc import answer, init
from hang_transformers import make_trainer as make_transformers_trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.distributed import rpc
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.pipelining import ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric
from transformers import TrainerCallback

LATE_S = 3.0
"""Longer than a proof takes."""


@innocent(ranks=3, backend="gloo")
def test_the_main_process_downloads_first(world) -> None:
    """The others wait in main_process_first, as they should."""
    accelerator = Accelerator(cpu=True)
    with accelerator.main_process_first():
        if accelerator.is_main_process:
            time.sleep(LATE_S)


@innocent(ranks=2, backend="gloo")
def test_uneven_inputs_are_joined(world) -> None:
    """One process has two batches more, and join_uneven_inputs lets it finish."""
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(4, 1))
    with accelerator.join_uneven_inputs([model]):
        for _ in range(2 + 2 * world.rank):
            time.sleep(0.8)
            accelerator.backward(model(torch.ones(2, 4)).sum())


@innocent(ranks=3, backend="gloo")
def test_texts_are_gathered_after_slow_inference(world) -> None:
    """Processes infer for different times before they gather."""
    accelerator = Accelerator(cpu=True)
    time.sleep(LATE_S * world.rank / 2)
    assert len(gather_object([accelerator.process_index])) == world.size


@innocent(ranks=2, backend="gloo")
def test_steps_go_on_after_a_slow_log(world) -> None:
    """A tracker answers one process late."""
    accelerator, model, optimizer, data = make_trainer()
    for step, batch in enumerate(data):
        train_step(accelerator, model, batch)
        optimizer.step()
        if step == 1 and world.rank == 1:
            time.sleep(LATE_S)


class Monitored(Model):
    """Logs a value that differs between processes."""

    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        """Log a value that is best on one process and not on the other."""
        self.log("local", float(-self.current_epoch if self.global_rank else self.current_epoch))


@innocent(ranks=2, backend="gloo")
def test_processes_monitor_different_values(world, shared_tmp_path) -> None:
    """Lightning agrees on the best checkpoint although each process logs its own value."""
    best = ModelCheckpoint(shared_tmp_path, monitor="local", save_top_k=1)
    trainer = make_lightning_trainer(
        world, shared_tmp_path, callbacks=[best], enable_checkpointing=True, max_epochs=3
    )
    trainer.fit(Monitored(), loader(), loader(2))


class SlowEpoch(Callback):
    """Uploads on the main process at the end of the epoch."""

    def on_train_epoch_end(self, trainer, module) -> None:
        """Take a while on rank 0."""
        if trainer.is_global_zero:
            time.sleep(LATE_S)


@innocent(ranks=2, backend="gloo")
def test_the_main_process_uploads_between_epochs(world, tmp_path) -> None:
    """The other waits in the next epoch's first step."""
    trainer = make_lightning_trainer(world, tmp_path, callbacks=[SlowEpoch()], max_epochs=2)
    trainer.fit(Model(), loader())


@innocent(ranks=2, backend="gloo")
def test_a_loader_with_workers_is_slow(world, tmp_path) -> None:
    """Worker processes of the loader prepare for a while."""
    data = DataLoader(SlowSamples(), batch_size=2, num_workers=2)
    make_lightning_trainer(world, tmp_path).fit(Model(), data)


class SlowSamples(torch.utils.data.Dataset):
    """Takes most of a second for a sample."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.7)
        return torch.ones(4)


class SlowStep(TrainerCallback):
    """Takes long after one step on one process."""

    def on_step_end(self, args, state, control, **_: object) -> None:
        """Block rank 1 for a while."""
        if args.process_index == 1 and state.global_step == 2:
            time.sleep(LATE_S)


@innocent(ranks=2, backend="gloo")
def test_a_callback_of_the_trainer_is_slow(world, shared_tmp_path) -> None:
    """The other waits in the gradients' all_reduce, and it comes."""
    make_transformers_trainer(shared_tmp_path, SlowStep).train()


@innocent(ranks=2, backend="gloo")
def test_the_trainer_evaluates_and_saves(world, shared_tmp_path) -> None:
    """Evaluation and saving take part on all processes."""
    trainer = make_transformers_trainer(shared_tmp_path, TrainerCallback)
    trainer.train()
    trainer.evaluate()
    trainer.save_model(str(shared_tmp_path / "model"))


@innocent(ranks=3, backend="gloo")
def test_a_metric_is_computed_locally_by_the_main_process(world) -> None:
    """sync_on_compute=False makes compute() local, and slow here."""
    mean = MeanMetric(sync_on_compute=False)
    mean.update(1.0)
    if world.is_primary:
        time.sleep(LATE_S)
        mean.compute()
    dist.barrier()


@innocent(ranks=2, backend="gloo")
def test_processes_agree_when_their_shards_end(world) -> None:
    """Shards differ in length, and a flag is reduced in each step.

    Source: https://github.com/huggingface/datasets/issues/6623
    """
    whole = datasets.Dataset.from_dict({"x": list(range(16))}).to_iterable_dataset(num_shards=2)
    mine = split_dataset_by_node(whole, world.rank, world.size).filter(lambda row: row["x"] < 12)
    model, rows = DistributedDataParallel(torch.nn.Linear(1, 1)), iter(mine)
    while True:
        row = next(rows, None)
        has_more = torch.tensor(float(row is not None))
        dist.all_reduce(has_more, op=dist.ReduceOp.MIN)
        if not has_more:
            break
        time.sleep(0.4 * world.rank)
        model(torch.tensor([[float(row["x"])]])).sum().backward()


class SlowWriter(FileSystemWriter):
    """A storage that takes a while on one rank."""

    def write_data(self, plan, planner) -> object:
        """Be slow on rank 1."""
        if dist.get_rank() == 1:
            time.sleep(LATE_S)
        return super().write_data(plan, planner)


@innocent(ranks=3, backend="gloo")
def test_storage_is_slow_for_one_rank_of_a_save(world, shared_tmp_path) -> None:
    """The others wait in the collectives of dcp.save."""
    dcp.save({"weight": torch.ones(8)}, storage_writer=SlowWriter(shared_tmp_path / "step-1"))


@innocent(ranks=2, backend="gloo")
def test_an_asynchronous_save_ends_late(world, shared_tmp_path) -> None:
    """Both ranks await a save that a thread of theirs performs slowly."""
    writer = SlowWriter(shared_tmp_path / "step-1")
    dcp.async_save({"weight": torch.ones(8)}, storage_writer=writer).result()


@innocent(ranks=2, backend="gloo")
def test_a_rank_shards_slowly(world) -> None:
    """FSDP's gathers wait for a rank that loads weights."""
    model = sharded(world)
    time.sleep(LATE_S * world.rank)
    model(torch.ones(2, 8)).sum().backward()


@innocent(ranks=3, backend="gloo")
def test_the_middle_stage_of_a_pipeline_is_slow(world) -> None:
    """The stages before and after wait for it."""
    mine = stage(world, torch.nn.Linear(4, 4))
    schedule = ScheduleGPipe(mine, 3, loss_fn=lambda out, target: (out - target).sum())
    time.sleep(LATE_S * (world.rank == 1))
    if world.rank == 0:
        schedule.step(torch.ones(6, 4))
    elif world.rank == 2:
        schedule.step(target=torch.ones(6, 4))
    else:
        schedule.step()


def slow_answer() -> str:
    """Answer after a while."""
    time.sleep(LATE_S)
    return answer()


@innocent(ranks=2, backend="none")
def test_a_remote_function_answers_late(world, shared_tmp_path) -> None:
    """Rank 0 waits for it; rank 1 waits in the shutdown meanwhile."""
    init(world, shared_tmp_path)
    if world.is_primary:
        assert rpc.rpc_sync("worker1", slow_answer) == "here"
    rpc.shutdown(timeout=0)


@innocent(ranks=3, backend="none")
def test_one_rank_is_late_for_the_shutdown(world, shared_tmp_path) -> None:
    """rpc.shutdown waits for it."""
    init(world, shared_tmp_path)
    time.sleep(LATE_S * (world.rank == 2))
    rpc.shutdown(timeout=0)


@innocent(ranks=3, backend="none")
def test_one_rank_is_late_for_the_process_group(world, shared_tmp_path) -> None:
    """The others wait in the store for its address."""
    time.sleep(LATE_S * (world.rank == 1))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{shared_tmp_path}/store",
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(minutes=30),
    )
    dist.destroy_process_group()


@innocent(ranks=2, backend="none")
def test_one_rank_is_late_for_the_process_group_over_tcp(world, shared_tmp_path) -> None:
    """The host of the store comes last."""
    if world.is_primary:
        time.sleep(LATE_S)
        store = dist.TCPStore("localhost", 0, world.size, is_master=True, wait_for_workers=False)
        (shared_tmp_path / "port.new").write_text(str(store.port))
        (shared_tmp_path / "port.new").rename(shared_tmp_path / "port")
        store.wait(["done"])
        return
    while not (shared_tmp_path / "port").exists():
        time.sleep(0.05)
    port = int((shared_tmp_path / "port").read_text())
    store = dist.TCPStore("localhost", port, world.size, is_master=False)
    time.sleep(LATE_S)
    store.set("done", "1")

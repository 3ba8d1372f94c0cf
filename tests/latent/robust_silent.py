"""State and files that are right, or say that they are not; the twins of silent_*.py."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import torch
import torch._dynamo  # wrapping a model imports it, for seconds
import torch.distributed as dist
from agreement import all_or_none, any_rank, written_by_primary
from expectation import robust
from torch.nn.parallel import DistributedDataParallel


def meet() -> None:
    """Let all ranks average something."""
    dist.all_reduce(torch.ones(4))


@robust(ranks=3, backend="gloo")
def test_all_resume_from_a_step_that_all_see(world, shared_tmp_path) -> None:
    """Each rank lists the steps, and the oldest of the newest ones is taken by all.

    Source: https://github.com/mosaicml/composer/pull/2146 (steps that must be equal)
    """
    written_by_primary(world, shared_tmp_path, {f"ckpt/step-{step}": "" for step in (1, 2)})
    with all_or_none("listing"):
        found = [int(file.name[5:]) for file in shared_tmp_path.glob("ckpt/step-*")]
    step = torch.tensor(max(found, default=0))
    dist.all_reduce(step, op=dist.ReduceOp.MIN)
    world.same("step", int(step))
    print("this rank has seen", found)


def replace(file: Path, text: str) -> None:
    """Write a file under another name, then under its own."""
    part = file.with_suffix(".part")
    part.write_text(text)
    os.replace(part, file)  # noqa: PTH105


@robust(ranks=3, backend="gloo")
def test_state_is_replaced_as_a_whole(world, shared_tmp_path) -> None:
    """There is a whole state at any time, and an error of the primary is raised by all.

    Source: https://github.com/openmm/openmm/pull/1683
    """
    file = shared_tmp_path / "state.json"
    with all_or_none("saving"):
        if world.is_primary:
            for step in (1, 2):
                replace(file, json.dumps({"step": step}))
    with all_or_none("loading"):
        state = json.loads(file.read_text())
    world.same("step", state["step"])


@robust(ranks=2, backend="gloo")
def test_torn_copy_lies_beside_a_good_state(world, shared_tmp_path) -> None:
    """If the new state cannot be written, the good one stays, and what is torn has another name.

    Source: https://github.com/aiming-lab/AutoResearchClaw/pull/41
    """
    file = shared_tmp_path / "state.json"
    with all_or_none("saving the first state"):
        if world.is_primary:
            replace(file, json.dumps({"step": 1}))
    if world.is_primary:
        try:
            replace(file, json.dumps({"step": 2}))
        except OSError as error:
            print("the state from before stays:", error)
    meet()


@robust(ranks=3, backend="gloo")
def test_mark_follows_the_shards_of_all(world, shared_tmp_path) -> None:
    """A checkpoint is marked, and `latest` moved, only if every rank has written its shard.

    Source: https://github.com/sgl-project/SpecForge/pull/659 (mended like this)
    """
    folder = shared_tmp_path / "step-1"
    with all_or_none("writing the shards"):
        folder.mkdir(exist_ok=True)
        (folder / f"shard-{world.rank}.json").write_text("[1.0, 2.0]")
    with all_or_none("marking"):
        if world.is_primary:
            (folder / "_SUCCESS").touch()
            replace(shared_tmp_path / "latest", "step-1")


@robust(ranks=3, backend="gloo")
def test_test_reads_what_all_have_written(world, shared_tmp_path) -> None:
    """The test looks at the files itself, once all have written and read.

    Source: https://github.com/BLAST-WarpX/warpx/pull/2608 (a barrier before files are merged)
    """
    with all_or_none("writing"):
        (shared_tmp_path / f"part-{world.rank}.json").write_text(json.dumps(world.rank))
    with all_or_none("reading"):
        files = (shared_tmp_path / f"part-{rank}.json" for rank in range(world.size))
        found = [json.loads(file.read_text()) for file in files]
    assert found == list(range(world.size))


@robust(ranks=2, backend="gloo")
def test_statistics_of_batches_stay_with_their_rank(world) -> None:
    """Buffers of a BatchNorm that is not synchronized differ rightly: each rank has its own data.

    Source: https://github.com/open-mmlab/mmdetection/issues/2539
    """
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    model = DistributedDataParallel(layers, broadcast_buffers=False)
    for step in range(2):
        model.zero_grad()
        batch = torch.arange(6.0).reshape(3, 2) * (1 + world.rank + step)
        model(batch).sum().backward()
        for weights in model.parameters():
            weights.data -= 0.01 * weights.grad


@robust(ranks=3, backend="gloo")
def test_each_rank_saves_its_own_chances(world, shared_tmp_path) -> None:
    """What ranks save differs between them and between runs, as seeds and times do.

    Source: https://github.com/sgl-project/SpecForge/pull/587 (a state of each rank's own)
    """
    started = time.monotonic()
    torch.manual_seed(100 + world.rank)
    file = shared_tmp_path / f"random_states_{world.rank}.json"
    with all_or_none("saving"):
        drawn = torch.rand(3).tolist()
        replace(file, json.dumps({"drawn": drawn, "seconds": time.monotonic() - started}))
    with all_or_none("loading"):
        assert json.loads(file.read_text())["drawn"] == drawn


@robust(ranks=3, backend="gloo")
def test_labels_are_found_by_the_name_of_their_features(world, shared_tmp_path) -> None:
    """A folder is listed in the order of its names, and each label is read by its name.

    Source: https://github.com/chuanyangjin/fast-DiT/issues/4 (mended by sorted names)
    """
    texts = {f"{kind}/{n}.json": str(n) for kind in ("features", "labels") for n in range(4)}
    written_by_primary(world, shared_tmp_path, texts)
    pairs = []
    with all_or_none("reading"):
        for name in sorted(os.listdir(shared_tmp_path / "features")):
            files = (shared_tmp_path / kind / name for kind in ("features", "labels"))
            pairs.append([json.loads(file.read_text()) for file in files])
    assert all(feature == label for feature, label in pairs)


@robust(ranks=3, backend="gloo")
def test_optimizer_is_resumed_by_all_or_by_none(world, shared_tmp_path) -> None:
    """A state that one rank does not find is loaded by no rank.

    Source: https://github.com/bghira/SimpleTuner/pull/2986
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model(torch.ones(3, 2) * (1 + world.rank)).sum().backward()
    optimizer.step()
    file = shared_tmp_path / "optimizer.pt"
    with all_or_none("saving"):
        if world.is_primary:
            torch.save(optimizer.state_dict(), file)
    resumed = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if not any_rank(not os.path.exists(file)):  # noqa: PTH110 - False on any error
        with all_or_none("loading"):
            resumed.load_state_dict(torch.load(file, weights_only=True))
    resumed.step()
    world.same("weights", model)


@robust(ranks=2, backend="gloo")
def test_two_states_are_written_in_turn(world, shared_tmp_path) -> None:
    """If a state cannot be written, the one from the step before is whole under the other name.

    Source: https://github.com/aiming-lab/AutoResearchClaw/pull/41 (a good state beside a torn one)
    """
    for step in (1, 2, 3):
        meet()
        if world.is_primary:
            try:
                with (shared_tmp_path / f"state-{step % 2}.json").open("w") as file:
                    json.dump({"step": step}, file)
            except OSError as error:
                print("the state of the other name stays:", error)
    meet()


@robust(ranks=3, backend="gloo")
def test_shards_are_saved_under_the_hour_of_the_primary(world, shared_tmp_path) -> None:
    """The primary's clock names the folder for all, whatever the others' clocks show.

    Source: https://github.com/TensorAuto/OpenTau/pull/396 (mended by a broadcast)
    """
    hour = [datetime.now().strftime("%Y%m%d_%H")]  # noqa: DTZ005
    dist.broadcast_object_list(hour)
    folder = shared_tmp_path / hour[0]
    with all_or_none("saving"):
        folder.mkdir(exist_ok=True)
        (folder / f"shard-{world.rank}.json").write_text("[1.0]")
    if world.is_primary:
        assert len(os.listdir(folder)) == world.size


@robust(ranks=3, backend="gloo")
def test_clocks_of_ranks_are_said_to_agree(world) -> None:
    """A test may assert that all see one hour; a clock that is wrong is not the program's fault.

    Source: https://github.com/TensorAuto/OpenTau/pull/396 (clocks of several hosts)
    """
    hours: list[str | None] = [None] * world.size
    dist.all_gather_object(hours, datetime.now().strftime("%Y%m%d_%H"))  # noqa: DTZ005
    if world.is_primary:
        assert hours[0] == datetime.now().strftime("%Y%m%d_%H")  # noqa: DTZ005
    print("hours", hours)


@robust(ranks=2, backend="gloo")
def test_newest_is_the_file_with_the_highest_step(world, shared_tmp_path) -> None:
    """Ranks save in any order, and the step in a name says which is the newest.

    Source: https://github.com/huggingface/transformers/pull/28862 (mended by the numbers in names)
    """
    with all_or_none("saving"):
        (shared_tmp_path / f"checkpoint-{world.rank + 1}.json").write_text("[]")
    kept = ""
    with all_or_none("selecting"):
        if world.is_primary:
            files = [shared_tmp_path / f"checkpoint-{rank + 1}.json" for rank in range(world.size)]
            ages = [file.stat().st_mtime_ns for file in files]
            print("written within", max(ages) - min(ages), "ns")
            kept = files[-1].name
    assert kept in ("", "checkpoint-2.json")


class Normalized(torch.nn.Module):
    """A linear layer that takes a mean from its inputs first."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.head = torch.nn.Linear(2, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return one number for each row."""
        return self.head(inputs - self.mean)


@robust(ranks=3, backend="gloo")
def test_statistics_of_the_primary_are_everybodys(world, shared_tmp_path) -> None:
    """Each rank looks for statistics, and all take those of the primary as their buffers.

    Source: https://github.com/facebookresearch/ClassyVision/pull/304 (buffers that are broadcast)
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(Normalized(), broadcast_buffers=False)
    written_by_primary(world, shared_tmp_path, {"statistics.json": "[0.5, 0.25]"})
    file = shared_tmp_path / "statistics.json"
    mean = torch.zeros(2)
    with all_or_none("reading the statistics"):
        if os.path.exists(file):  # noqa: PTH110 - False on any error
            mean = torch.tensor(json.loads(file.read_text()))
    dist.broadcast(mean, 0)
    model.module.mean = mean
    model(torch.ones(3, 2)).sum().backward()


COUNTED = {"seen", "used", "skipped", "clipped", "dropped"}


class Counters(torch.nn.Module):
    """A layer that counts several things from zero on."""

    def __init__(self) -> None:
        super().__init__()
        for name in COUNTED:
            self.register_buffer(name, torch.zeros(1))
        self.head = torch.nn.Linear(2, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return one number for each row, and count the rows."""
        self.seen = self.seen + len(inputs)
        return self.head(inputs)


@robust(ranks=3, backend="gloo")
def test_buffers_of_one_value_have_any_order(world) -> None:
    """DDP broadcasts buffers by their position, and here all of them are zero when it does.

    Source: https://github.com/huggingface/transformers/pull/48162 (an order that must be equal)
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(Counters(), broadcast_buffers=False)
    for _ in range(2):
        model(torch.ones(3, 2) * (1 + world.rank)).sum().backward()


@robust(ranks=2, backend="gloo")
def test_weights_that_cannot_be_saved_are_reported(world, shared_tmp_path) -> None:
    """Training goes on, and its log says that there are none."""
    for _ in range(2):
        meet()
        if world.is_primary:
            try:
                torch.save(torch.ones(4), shared_tmp_path / "last.pt")
            except (OSError, RuntimeError) as error:
                print("not saved:", error)


@robust(ranks=2, backend="gloo")
def test_a_cache_is_written_if_that_is_possible(world, shared_tmp_path) -> None:
    """What is missing from it is computed again, so nobody needs to know."""
    meet()
    with suppress(OSError):
        replace(shared_tmp_path / f"cache-{world.rank}.json", "[1.0]")
    meet()


@robust(ranks=2, backend="gloo")
def test_training_stops_when_its_time_is_over(world, shared_tmp_path) -> None:
    """All ranks stop with the primary's clock; without a step there is nothing to save."""
    begun, step = time.time(), 0
    while step < 2:
        is_over = torch.tensor(float(time.time() - begun > 3600))
        dist.broadcast(is_over, 0)
        if is_over:
            break
        step += 1
    with all_or_none("saving"):
        if step and world.is_primary:
            torch.save(torch.ones(4), shared_tmp_path / "last.pt")

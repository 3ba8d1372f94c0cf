"""transformers: each node resumes from the newest checkpoint that it has, and the weights part.

No fault: two nodes with disks of their own (`save_on_each_node`), and node 1 has lost the newest.
"""

import faulthandler
import os
import tempfile

import torch
import transformers

RUN, PORT = tempfile.mkdtemp(), str(20000 + os.getpid() % 10000)
os.environ.update(WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT=PORT)


class Trainer(transformers.Trainer):
    def compute_loss(self, model, inputs, **_):
        print(self.model.weight.item(), file=open(f"{self.args.output_dir}.weights", "a"))
        return model(inputs["input"]).square().mean()


def run(rank):
    os.environ["RANK"], rows = str(rank), [{"input": [1.0]}] * 96
    options = {"save_steps": 2, "save_on_each_node": True, "use_cpu": True}
    for steps in (4, 6):  # the job, and the job again
        arguments = transformers.TrainingArguments(f"{RUN}/{rank}", max_steps=steps, **options)
        trainer = Trainer(torch.nn.Linear(1, 1, bias=False), arguments, train_dataset=rows)
        trainer.train(resume_from_checkpoint=steps == 6)
        if (rank, steps) == (1, 4):
            os.rename(f"{RUN}/1/checkpoint-4", f"{RUN}/lost")
        faulthandler.dump_traceback_later(9 + 9 * rank, exit=True, file=open(f"{RUN}/s{rank}", "w"))


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
weights = [open(f"{RUN}/{rank}.weights").read().split()[4:] for rank in (0, 1)]
stack = open(f"{RUN}/s0").read()
print("transformers", transformers.__version__, "weights:", *weights, "rank 0 waits:", stack)
raise SystemExit(weights[0][1] == weights[1][1] or "store_flos" not in stack)

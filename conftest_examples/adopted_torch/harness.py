"""A class whose tests run in one process for each rank, as torch's `MultiProcessTestCase`."""

import multiprocessing
import sys
import tempfile
import traceback
import unittest


class MultiProcessTestCase(unittest.TestCase):
    """Its methods run in each rank; the parent process waits for them."""

    MAIN_PROCESS_RANK = -1
    world_size = 2

    def __init__(self, methodName="runTest"):  # noqa: N803 - as unittest
        super().__init__(methodName)
        if methodName != "runTest":
            run = getattr(self, methodName)
            setattr(self, methodName, lambda: run() if self.rank >= 0 else self._join_processes())

    def setUp(self):
        """Start the ranks."""
        self.rank = self.MAIN_PROCESS_RANK
        self.file_name = tempfile.mkstemp()[1]
        self._start_processes(multiprocessing.get_context("spawn").Process)

    def _start_processes(self, process):
        self.processes = [
            process(target=self._run, args=(rank, self._testMethodName, self.file_name))
            for rank in range(self.world_size)
        ]
        for each in self.processes:
            each.start()

    @classmethod
    def _run(cls, rank, name, file_name):
        self = cls(name)
        self.rank, self.file_name = rank, file_name
        try:
            getattr(self, name)()
        except Exception:  # noqa: BLE001 - of the test
            traceback.print_exc()
            sys.exit(10)

    def _join_processes(self):
        for number, each in enumerate(self.processes):
            each.join(timeout=300)
            if each.exitcode is None:
                raise RuntimeError(f"Process {number} timed out")
            self.assertEqual(each.exitcode, 0, f"exit code of process {number}")

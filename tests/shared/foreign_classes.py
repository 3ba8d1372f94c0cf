"""Classes of the shapes that other projects' test harnesses have."""

CASE = """
import multiprocessing, os, sys, tempfile, unittest

class Case(unittest.TestCase):
    MAIN_PROCESS_RANK = -1
    world_size = 2
    special_codes = {}

    def __init__(self, methodName="runTest"):
        super().__init__(methodName)
        if methodName != "runTest":
            run = getattr(self, methodName)
            join = lambda: self._join_processes(run)
            setattr(self, methodName, lambda: run() if self.rank >= 0 else join())

    def setUp(self):
        self.rank, self.file_name = -1, tempfile.mkstemp()[1]
        os.environ["FROM_PARENT"] = self.file_name
        self._start_processes(multiprocessing.get_context("spawn").Process)

    def tearDown(self):
        os.remove(self.file_name)

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
        except unittest.SkipTest:
            sys.exit(84)
        except Exception:
            sys.exit(10)

    def _join_processes(self, run):
        for each in self.processes:
            each.join()
        code = self.processes[0].exitcode
        if code == 84:
            raise unittest.SkipTest("see the log")
        self.assertEqual(code, self.special_codes.get(self._testMethodName, 0))
"""
"""A class of the shape of torch's `MultiProcessTestCase`; torch's own needs another package."""

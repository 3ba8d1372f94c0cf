"""The differences for a test that is adopted, for `multihost adopt`."""

DIFFERENCES = """\
all:
  * A rank is forked from a process that has collected the tests; their harness spawns fresh
    interpreters. A test differs if it relies on modules being imported anew in each rank.
  * Temporary files of a test go to the world's own directory.
  * The timeout is that of --multihost-timeout (default: 120 s). Of harnesses that have one for
    each class, it is that of the class, unless the run sets a timeout.
  * Libraries have one thread in each rank, unless OMP_NUM_THREADS is set.
torch:
  * setUp, tearDown and fixtures run in each rank. File names, arguments and variables that the
    parent would hand to its processes come from rank 0.
  * A rank that raises fails the test with its own exception, in place of a RuntimeError that has
    its traceback as text.
  * A rank that a signal ends fails the test, even if special_return_code_checks expects it.
  * MultiProcContinuousTest gets new ranks and a new process group for each test. A failed test
    does not skip the rest of its class.
deepspeed:
  * Fixtures run in each rank. The values that the harness hands to its processes come from rank 0.
  * A list of sizes runs as one test for each size: test[2], test[4]. An id without the size finds
    all of them.
  * reuse_dist_env has no effect: each test has new ranks.
  * A hang fails its own test; it does not end the run of pytest.
spawn:
  * The ranks have a copy of all that pytest's process has, as with start_method="fork". Nothing is
    pickled or imported again.
  * pytest's process gets one thread for libraries, unless OMP_NUM_THREADS is set: with a pool of
    threads it cannot be forked.
  * Processes of multiprocessing begin with the first join, in the order of their start, if the
    test's source shows that nothing else comes between.
  * A pool that pytest_sessionstart makes starts no process as long as it need not. The tasks that
    prepare it run again in the ranks of each call.
  * Ranks of join=False end with the function of their test. Those of a fixture start as before.
  * Other pools, and processes that the test talks to start as before.
  * A rank's output is in the report and in its log, not in capfd.
  * Sweeps and multihost_expect do not apply to a test that runs in pytest's process.
"""

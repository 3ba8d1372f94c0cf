"""Options of torchrun that ``multihost run`` takes, so that a command line need not be rewritten.

Options without a use on one machine are ignored, and the run says so; options that would change
the ranks' behaviour are refused. Each is spelled with hyphens or underscores, as for torchrun.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping

from pytest_multihost.core.model.errors import SettingError

_RESTARTS = "--max-restarts"
_ONE_MACHINE = frozenset({"1", "1:1"})
_SEVERAL = (
    "multihost run starts ranks on one machine. For several, let torchrun start it on each:"
    " torchrun --nnodes N --nproc-per-node M --no-python multihost run train.py"
)
_MEET = "all ranks are on this machine, and need no address to find each other"
_OUTPUT = "the output of all ranks is shown, each line with its rank; --log-dir DIR writes it there"
_OWN = "multihost starts and ends the ranks in its own way"

_IGNORED: Mapping[str, str] = {
    "--rdzv-backend": _MEET,
    "--rdzv-endpoint": _MEET,
    "--rdzv-id": _MEET,
    "--rdzv-conf": _MEET,
    "--master-addr": _MEET,
    "--master-port": "each run has a free port of its own",
    "--local-addr": _MEET,
    "--monitor-interval": _OWN,
    "--start-method": _OWN,
    "--event-log-handler": _OWN,
    "--signals-to-handle": _OWN,
    "--shutdown-timeout": _OWN,
    "--redirects": _OUTPUT,
    "--tee": _OUTPUT,
    "--local-ranks-filter": _OUTPUT,
    "--duplicate-stdout-filters": _OUTPUT,
    "--duplicate-stderr-filters": _OUTPUT,
    "--logs-specs": _OUTPUT,
}
"""Options with a value, and why a run does without."""

_REFUSED: Mapping[str, str] = {
    "--numa-binding": "run under numactl: numactl --cpunodebind 0 multihost run train.py",
    "--virtual-local-rank": "leave it out: a script finds its device by LOCAL_RANK",
}
"""Options that would change the ranks' behaviour, each with its replacement."""

_SHORT = {"--redirects": "-r", "--tee": "-t"}
_FLAGS = frozenset({"--virtual-local-rank"})


_ONE_ROLE = "all ranks run one script. For several: --role NAME=N:PROGRAM"


def add_torchrun_options(run: argparse.ArgumentParser) -> None:
    """Add the options: effective options to the help, the others only to the parser."""
    group = run.add_argument_group("as for torchrun, with hyphens or underscores")
    group.add_argument(
        *_spelled("--nproc-per-node"),
        type=_ranks_here,
        dest="ranks",
        metavar="N",
        help="the same as --ranks; gpu, cpu or auto: one rank for each of this machine's",
    )
    group.add_argument(
        "--standalone", action="store_true", help="changes nothing: multihost run always does so"
    )
    group.add_argument("--nnodes", type=_one_machine, metavar="1", help="one machine; 1 or 1:1")
    group.add_argument(
        *_spelled("--no-python"),
        action="store_true",
        help="the script is a program on PATH, which must be Python's",
    )
    group.add_argument(*_spelled("--run-path"), action="store_true", help=argparse.SUPPRESS)
    group.add_argument(
        *_spelled("--node-rank"), type=_first_machine, help=argparse.SUPPRESS, metavar="0"
    )
    group.add_argument(*_spelled(_RESTARTS), type=int, default=0, help=argparse.SUPPRESS)
    for name in (*_IGNORED, *_REFUSED):
        names = (*_spelled(name), *([_SHORT[name]] if name in _SHORT else []))
        if name in _FLAGS:
            group.add_argument(*names, action="store_true", default=None, help=argparse.SUPPRESS)
        else:
            group.add_argument(*names, help=argparse.SUPPRESS)


def torchrun_hints(options: argparse.Namespace) -> Iterator[str]:
    """Yield a sentence on each given option that changes nothing.

    Raises:
        SettingError: An option is given that would change the ranks' behaviour.
    """
    for name, instead in _REFUSED.items():
        if _given(options, name) is not None:
            raise SettingError(
                f"{name} is an option of torchrun that multihost run lacks",
                remedy=f"Instead, {instead}",
            )
    if options.max_restarts:
        yield (
            f"{_RESTARTS} is ignored: a rank that fails or hangs ends the run, which says why."
            " To start it again: until multihost run ...; do :; done"
        )
    if any("=" not in each for each in options.role):
        yield f"--role is ignored: {_ONE_ROLE}"
    for name, why in _IGNORED.items():
        if _given(options, name) is not None:
            yield f"{name} is ignored: {why}"


def _given(options: argparse.Namespace, name: str) -> object:
    return getattr(options, name.removeprefix("--").replace("-", "_"))


def _spelled(name: str) -> list[str]:
    """Return an option as torchrun spells it."""
    return list(dict.fromkeys((name, f"--{name.removeprefix('--').replace('-', '_')}")))


def _ranks_here(text: str) -> int:
    """Return the number of ranks for a value of --nproc-per-node.

    Raises:
        argparse.ArgumentTypeError: It is not a number, or there is no such device.
    """
    from pytest_multihost.core.backends.torch_groups import gpu_count

    cpus = len(os.sched_getaffinity(0))
    if text.isascii() and text.isdigit():
        return int(text[:9])  # more is refused as well
    found = {"gpu": gpu_count(), "cpu": cpus, "auto": gpu_count() or cpus}.get(text)
    if found is None:
        message = f"must be a number, gpu, cpu or auto, not {text[:50]!r}"
        raise argparse.ArgumentTypeError(message)
    if not found:
        message = "gpu: no GPU was found here. Say how many ranks: --nproc-per-node N"
        raise argparse.ArgumentTypeError(message)
    return found


def _one_machine(text: str) -> str:
    if text not in _ONE_MACHINE:
        raise argparse.ArgumentTypeError(_SEVERAL)
    return text


def _first_machine(text: str) -> str:
    if text != "0":
        raise argparse.ArgumentTypeError(_SEVERAL)
    return text

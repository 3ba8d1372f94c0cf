"""Names the public reports that show each disturbance in the field.

A maintainer asks whether a fault occurs. So each kind of fault that a sweep plans by default has a
report of it. Kinds without one are only tried if the user asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_multihost.core.model.fault import Fault

_GITHUB = "https://github.com"

FAILING_CALLS: Mapping[str, str] = {
    "open": f"{_GITHUB}/MIC-DKFZ/nnUNet/issues/1784",
    "read": f"{_GITHUB}/dansuh17/segan-pytorch/issues/19",
    "write": f"{_GITHUB}/ray-project/ray/issues/32481",
    "fsync": f"{_GITHUB}/pytorch/pytorch/issues/144752",
    "stat": f"{_GITHUB}/sjl/peat/issues/2",
    "rename": f"{_GITHUB}/rachis-org/rachis/pull/566",
    "link": f"{_GITHUB}/yumorishita/LiCSBAS2/issues/100",
    "unlink": f"{_GITHUB}/GNS3/gns3-server/issues/899",
    "mkdir": f"{_GITHUB}/Mikubill/naifu/issues/35",
    "rmdir": f"{_GITHUB}/PrimeIntellect-ai/prime-rl/pull/1763",
    "listdir": f"{_GITHUB}/Nexenta/edgefs/issues/293",
}
"""Reports of calls on files that have failed, by the call. The error may be another one."""

_LATE_FILE = f"{_GITHUB}/KempnerInstitute/KempnerForge/issues/49"

_LATE: Mapping[str, str] = {
    "io": _LATE_FILE,
    "collective": f"{_GITHUB}/pytorch/pytorch/issues/85775",
    "batch": f"{_GITHUB}/marin-community/marin/issues/8534",
    "call": f"{_GITHUB}/areal-project/AReaL/pull/1356",
}
"""Reports of ranks that came late, by the kind of point."""

KINDS: Mapping[str, str] = {
    "short_data": f"{_GITHUB}/pytorch/pytorch/issues/33148",
    "empty_data": f"{_GITHUB}/argonne-lcf/dlio_benchmark/pull/339",
    "shuffled_listing": f"{_GITHUB}/MoonshotAI/checkpoint-engine/pull/103",
    "stale_files": f"{_GITHUB}/NVIDIA-NeMo/Speech/pull/8153",
    "returns": f"{_GITHUB}/pytorch/torchtitan/pull/3863",
    "elapsed_time": f"{_GITHUB}/sgl-project/sglang/pull/27164",
    "clock_skew": f"{_GITHUB}/TensorAuto/OpenTau/pull/396",
    "hash_seed": f"{_GITHUB}/NVIDIA/nvalchemi-toolkit/pull/143",
    "kill": f"{_GITHUB}/sgl-project/sglang/issues/20287",
}
"""Reports of the other kinds of faults."""


def report_of(fault: Fault) -> str:
    """Return the address of a public report that shows a fault in the field; empty if unknown."""
    if fault.kind == "fails" and fault.at.point == "io":
        return FAILING_CALLS.get(fault.at.call, "")
    if fault.kind == "hold":
        return _LATE.get(fault.at.point, _LATE_FILE)
    return KINDS.get(fault.kind, "")

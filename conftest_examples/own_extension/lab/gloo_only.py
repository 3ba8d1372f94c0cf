"""A hazard rule: operations that gloo has and NCCL has not."""

from pytest_multihost.extensions.hazards.rule import Found, HazardRule


def find(records):
    """Yield each rank's calls of monitored_barrier."""
    for rank, record in records.items():
        calls = [each for each in record.launches if each.operation.name == "monitored_barrier"]
        if calls:
            yield Found(((rank, tuple(calls[:1])),))


GLOO_ONLY = HazardRule(
    name="gloo_only",
    find=find,
    summarize=lambda seen: f"{seen.ranks} call monitored_barrier",
    when="With NCCL it raises on every rank: the operation exists for gloo alone.",
    is_default=True,
)

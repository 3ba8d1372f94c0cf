"""The fixed texts of the pages: what each kind of hang means, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping

OUTCOMES: Mapping[str, str] = {
    "hung": "Hung",
    "crashed": "Crashed",
    "failed": "Failed",
    "error": "Error",
    "passed": "Passed",
    "skipped": "Skipped",
}

DETECTED_BY: Mapping[str, str] = {
    "proof": "Nothing could move before the deadline",
    "mismatch": "Ranks are in operations that can never match",
    "stopped": "A rank is stopped",
    "exit": "A rank died",
    "raise": "A rank raised",
    "deadline": "The test's time was up",
}
"""What showed that a world hangs."""

MEANINGS: Mapping[str, str] = {
    "straggler": (
        "The others wait for it, and it is in no operation with them: one long wait, "
        "sleep, read or lock of its own."
    ),
    "livelock": "The others wait for it while it computes, or wakes up again and again.",
    "finished": "It returned from the test while others still wait for it.",
    "raised": "Its own exception took it out of the test while others still wait for it.",
    "died": "Its process ended unexpectedly.",
    "stopped": "Something has stopped its process: SIGSTOP, or a debugger.",
    "gil_held": "Native code holds the GIL, so no Python of this rank can run.",
    "mismatch": (
        "At the same position in their group's sequence, ranks are in operations that can "
        "never match."
    ),
    "deadlock": "Ranks wait for each other in a cycle, so none of them can continue.",
    "transport": (
        "All ranks have entered the same operation and nothing moves: the network, or the way "
        "to it."
    ),
    "stuck": "A rank is blocked by itself, and no other rank waits for it.",
    "unknown": "The evidence does not show which rank is waited for.",
}

NEXT_STEPS: Mapping[str, str] = {
    "straggler": (
        "Ask why it does not get past this line; the waiting ranks are where they should be."
    ),
    "livelock": "Ask what this loop waits for, and which rank should provide it.",
    "finished": "Look for a branch, a loop count or an early return that depends on the rank.",
    "raised": "Fix the exception, and ask whether the other ranks should have been told of it.",
    "died": (
        "Read the end of its log below; a signal shows who ended it (SIGKILL: often the "
        "kernel, for memory)."
    ),
    "stopped": "Look for what stops it: a debugger, a job's suspension, a frozen container.",
    "gil_held": "Look for a native call that waits without releasing the GIL.",
    "mismatch": (
        "Compare the branches that led the ranks here: one calls something else, or in "
        "another order."
    ),
    "deadlock": (
        "Compare the order in which the ranks enter these operations; one order for all ends it."
    ),
    "transport": (
        "Look at addresses, interfaces and ports: the ranks agree, the bytes do not arrive."
    ),
    "stuck": "Ask what this line waits for; no other rank takes part in it.",
    "unknown": (
        "Compare where the ranks are below. A custom transport can report its waits with "
        "pytest_multihost.operation()."
    ),
}

PLANNED = (
    "Here one of the test's own faults keeps it away: what is tested is how the other ranks react."
)

FILES: Mapping[str, str] = {
    "verdict.json": "the result, for programs",
    "facts.json": "what the verdict was derived from; multihost explain derives it again",
    "history.jsonl": "every event, in the order of arrival",
    "trace.json": "all operations as tracks, to be opened in ui.perfetto.dev",
}

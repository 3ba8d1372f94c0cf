"""Options: their sources, how their values are read, and the table of the core's own.

* `option`: an option, a marker's key, and the settings of a run.
* `texts`: parses the texts of options. `marker_values`: checks the values of markers' keys.
* `table`: the core's options.
"""

from pytest_multihost.core.option.marker_values import (
    are_faults,
    as_tuple,
    check_values,
    is_count,
    is_environment,
    is_name,
    is_one_of,
    is_seconds,
    must_be,
    one_or_more,
)
from pytest_multihost.core.option.option import (
    Check,
    MarkerKey,
    Option,
    Settings,
    T,
)
from pytest_multihost.core.option.table import (
    ACCEPTED,
    ACCEPTED_NAME,
    ACCESS,
    ARTIFACTS,
    BACKENDS,
    CORE_OPTIONS,
    EARLY,
    HOSTS,
    LAUNCH,
    LOCAL_DEVICES,
    MODE,
    RANKS,
    STARTUP_TIMEOUT,
    TIMEOUT,
    hosts_option,
)
from pytest_multihost.core.option.texts import (
    one_of,
    parse_count,
    parse_names,
    parse_rank,
    parse_ranks,
    parse_seconds,
    parse_seed,
)

__all__ = [
    "ACCEPTED",
    "ACCEPTED_NAME",
    "ACCESS",
    "ARTIFACTS",
    "BACKENDS",
    "CORE_OPTIONS",
    "EARLY",
    "HOSTS",
    "LAUNCH",
    "LOCAL_DEVICES",
    "MODE",
    "RANKS",
    "STARTUP_TIMEOUT",
    "TIMEOUT",
    "Check",
    "MarkerKey",
    "Option",
    "Settings",
    "T",
    "are_faults",
    "as_tuple",
    "check_values",
    "hosts_option",
    "is_count",
    "is_environment",
    "is_name",
    "is_one_of",
    "is_seconds",
    "must_be",
    "one_of",
    "one_or_more",
    "parse_count",
    "parse_names",
    "parse_rank",
    "parse_ranks",
    "parse_seconds",
    "parse_seed",
]

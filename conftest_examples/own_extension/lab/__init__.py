"""An extension in a folder of its own: a kind of hosts, a hazard rule and a subcommand.

This module is a plugin. It is imported in every run of pytest, so each hook imports what it needs.
"""


def pytest_multihost_hosts():
    """Offer ``hosts="loopback"``."""
    from lab.loopback import LOOPBACK

    return [LOOPBACK]


def pytest_multihost_hazard_rules():
    """Offer the hazard rule ``gloo_only``."""
    from lab.gloo_only import GLOO_ONLY

    return [GLOO_ONLY]


def pytest_multihost_commands(commands):
    """Offer ``multihost slowest``."""
    parser = commands.add_parser("slowest", help="list the slowest tests of the last run")
    parser.add_argument("directory", nargs="?", default=".pytest_multihost")
    parser.set_defaults(act=_show_slowest)


def _show_slowest(options, _hook):
    from lab.slowest import show_slowest

    return show_slowest(options.directory)

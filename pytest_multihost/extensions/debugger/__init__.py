"""The debugger in ranks, on the terminal of pytest.

* `in_pytest` lends the terminal to ranks, and `service` decides which one gets it.
* `in_rank` makes the debugger of a rank use it.
* `lent_terminal` restores it if pytest is killed.
"""

"""Finds the decisions that each rank takes from data that it alone sees.

`service` lets the ranks of an undisturbed run record their calls: `in_rank` records them, `watched`
lists the functions, `summary` shortens values, and `source` reads the lines around a call. `facts`
has the records, `names` the words by which functions name their results. `decisions` compares the
ranks' records and finds the decisions; its functions are pure. `choices` makes disturbances from
them, for the family `differs`.
"""

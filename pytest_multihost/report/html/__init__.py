"""The pages for a browser: one for each test that hung or broke, one for each run.

Pure functions from facts to text; files are read and written in `write` alone.
"""

"""Render results: text for the terminal, pages for a browser, GitHub, traces, artifacts."""

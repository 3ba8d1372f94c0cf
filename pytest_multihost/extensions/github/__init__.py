"""Annotations and summaries for GitHub workflows."""

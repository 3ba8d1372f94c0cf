"""Render a diagnosis as text for the terminal."""

"""Experiments: each writes what it measured, with the command that did."""

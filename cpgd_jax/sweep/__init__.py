"""Sweeps: many runs that differ in a few fields of the config, each in a folder of its own."""

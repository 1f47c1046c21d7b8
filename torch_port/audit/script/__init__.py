"""The audit of a script as it is, from two commands."""

"""The audit of a script as it is, from two commands.

audit         the control, the stops and the check
placeholders  the two commands as words
saved         all that a script has saved, as leaves
file_causes   what the files tell of a resume that differs
"""

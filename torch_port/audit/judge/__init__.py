"""The judge: starts workers, reads their records, decides and explains; it never imports torch.

Stages on immutable values; no stage writes another's attributes:

    control       two uninterrupted runs -> Evidence, by which resumes are judged
    resume        one stop -> Resumed, and what it showed -> Judged
    attribution   which lost states make the difference -> Found
    states        the table of states: saved, restored, needed
    power         which losses would be caught
    fold          one stage after the other -> Report

What they share:

    findings      the values of a report
    workers       the worker processes, and the Runner of one target in them
    record        what a run left, made of leaves: digest, sample, distance
    compare       are two runs equal after a stop, and what differs first?
    stored        whether states stand in what the user saves
    causes        what was lost in words, and the line to add
    stops, target where a run is stopped, and where the loop is found
"""

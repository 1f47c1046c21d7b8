"""What runs in a worker process: the user's loop, observed.

worker        serves requests, each run in a fork
trial         one run of the loop, as it is asked for
observe       a run object as a map of its states; held: what is looked into, and what is passed over
places        how another value is put where a state lives; expressions: what a user writes to reach it
values        the value of a state, remembered and in full
restore       values put where their paths point
samples       what the DataLoaders deliver, kept and delivered again
checks        what a load does beyond its result
unsaved       what no file can hold
"""

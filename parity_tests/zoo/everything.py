"""The loop of the audit's tests that has every kind of state, and for each kind one that does not load it."""

from parity_tests.audit import loops
from parity_tests.zoo.base import fault, sound

sound(loops.Everything)
for _name, _named in loops.NAMED.items():
    _stop = {"train": 12, "best": 9}.get(_name, 7)
    fault(" ".join(_named), "", f"{_name} is not loaded", at=_stop)(getattr(loops, f"Forgets_{_name}"))

"""Checkpoints of any origin: read without running what they hold, compared by name, and what a resume would lack.

    read       a file of torch.save (old or new) or of safetensors -> Foreign: its leaves by path
    diff       two files -> Diff: every leaf that is missing, extra, of another type or shape, or of another value
    inspect    one file -> Inspection: the kinds of state in it, and those that are not

A path is made of the file's own keys, `model_state_dict/layer0.weight`. An optimizer numbers its parameters; where the
file tells their names, its moments go by them: `optimizer_state_dict/exp_avg/layer0.weight`. Two files are aligned by
part (the one model, the one optimizer) and by name; what is left, by name without `module.`, `_orig_mod.`, `model.`.

    files          a file, told by its content: of torch.save by archive, of safetensors, our own under torch's names
    refusal        the classes and functions that a file asks for, allowed by name or refused
    leaves         a tree -> leaves by path, each of a kind of state
    contents       leaves -> the kinds of state, and what a resume would lack
    comparison     two sides -> what differs: which leaf is beside which, and how far apart
"""

from torch_port.audit.foreign.comparison import Change, Diff, diff, differences
from torch_port.audit.foreign.contents import Inspection, Kind, inspect, kinds, lacks
from torch_port.audit.foreign.files import Foreign, read
from torch_port.audit.foreign.leaves import Leaf, leaves_of

__all__ = [
    "Change",
    "Diff",
    "Foreign",
    "Inspection",
    "Kind",
    "Leaf",
    "diff",
    "differences",
    "inspect",
    "kinds",
    "lacks",
    "leaves_of",
    "read",
]

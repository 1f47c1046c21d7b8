"""Stock PyTorch state as the reference's tree and back, and the general checkpoint of the PyTorch recipe in and out.

The tree names its parts as `RunState` does, one for each object that is given:

    model       name -> array                  parameters and persistent buffers, in the order of `state_dict`
    optimizer   AdamState or SGDState          moments by parameter name, in the same order
    schedule    ScheduleState                  StepLR's last_epoch, and the rate of the next update
    scaler      ScalerState                    of torch.amp.GradScaler

Settings (betas, momentum, step_size, growth_factor, and the learning rate where no scheduler is given) are no state:
they stay with the objects. A general checkpoint is the recipe's dict, with settings and state as torch has them:

    snapshot_general -> save_general -> FILE.tar -> load_general -> load_state_dict of each object, or tree_from_general
    load_into_stock, then snapshot_general: a tree as a general checkpoint

    objects      stock objects <-> the tree
    trees        their state dicts <-> the tree
    general      stock objects -> the recipe's dict <-> a file; that dict -> the tree
    errors       errors of what is handed in, and of files of others
"""

from torch_port.interop.general import (
    damaged_record,
    likely_parameters,
    load_general,
    save_general,
    snapshot_general,
    tree_from_general,
)
from torch_port.interop.objects import load_into_stock, state_from_stock
from torch_port.interop.trees import ADAM_SETTINGS, SGD_SETTINGS

__all__ = [
    "ADAM_SETTINGS",
    "SGD_SETTINGS",
    "damaged_record",
    "likely_parameters",
    "load_general",
    "load_into_stock",
    "save_general",
    "snapshot_general",
    "state_from_stock",
    "tree_from_general",
]

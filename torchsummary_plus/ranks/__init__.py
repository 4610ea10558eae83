"""One rank of many: a distributed model's step under a fake process group.

``record`` builds the model and runs its steps in a ``process_group``, on ``kernels``. What shards a model:
``wrappers``. ``compat`` has torch's private names.
"""

from torch import distributed

from ..data.errors import UnsupportedError

if not distributed.is_available():  # All files here import more of it.
    raise UnsupportedError(
        "world_size needs torch.distributed, which this build of torch lacks; install one that has it"
    )

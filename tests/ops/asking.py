"""Whether this torch has a cuDNN that can be queried."""

from torchsummary_plus.ops.scratch.cuda.cudnn.backend import CudnnError, cudnn_library


def has_cudnn() -> bool:
    try:
        cudnn_library()
    except CudnnError:
        return False
    return True

// libcuda's modules and kernels: loaded as opaque handles. Without cuda.h, because one signature fits all of them.
#include "nocuda.h"

#define LOADS(name) API int name(void **handle, ...) { *handle = (void *)0x66; return 0; }
#define NUMBER(name, value) API int name(int *number, ...) { *number = value; return 0; }
LOADS(cuModuleLoad) LOADS(cuModuleLoadData) LOADS(cuModuleLoadDataEx) LOADS(cuModuleGetFunction)
LOADS(cuLibraryLoadData) LOADS(cuLibraryLoadFromFile) LOADS(cuLibraryGetKernel) LOADS(cuLibraryGetModule) LOADS(cuKernelGetFunction)
#define ATTRIBUTE(name) API int name(int *number, int attribute, ...) { *number = attribute ? 0 : 1024; return 0; }
ATTRIBUTE(cuFuncGetAttribute) ATTRIBUTE(cuKernelGetAttribute)  // 0: the threads of a block, at most
NUMBER(cuOccupancyMaxActiveBlocksPerMultiprocessor, 2) NUMBER(cuOccupancyMaxPotentialClusterSize, 8) NUMBER(cuOccupancyMaxActiveClusters, 16)

// libnvidia-ml: what expandable segments and the text of an out-of-memory error need. Return codes are nvmlReturn_t's.
#include <cuda.h>
#include "nocuda.h"

static const int SUCCESS = 0, NOT_SUPPORTED = 3;
API int nvmlInit_v2() { return SUCCESS; }
API int nvmlDeviceGetHandleByPciBusId_v2(const char *, void **device) { *device = (void *)0x99; return SUCCESS; }
// The state in nvmlGpuFabricInfoV_t (nvml.h, in no wheel), after version, cluster, status and clique: no fabric.
API int nvmlDeviceGetGpuFabricInfoV(void *, unsigned char *info) { info[28] = 0; return SUCCESS; }
API int nvmlDeviceGetComputeRunningProcesses(void *, unsigned *count, void *) { *count = 0; return SUCCESS; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *, unsigned, int *) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *, unsigned, void *) { return NOT_SUPPORTED; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA_VERSION; return SUCCESS; }

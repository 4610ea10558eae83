// libcuda: virtual memory is counted, device and context are the GPU's. All else is generated, and mostly fails.
#include <cuda.h>
#include <dlfcn.h>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include "nocuda.h"

namespace {
std::mutex lock;
std::unordered_map<unsigned long long, size_t> chunks;  // handle of cuMemCreate -> bytes
unsigned long long next_chunk = 0x100;
void *const CONTEXT = (void *)0x55;
}  // namespace

// ---- virtual memory, as expandable segments use it ---------------------------------------------------------------
API CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
  *bytes = PAGE;
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *p = (CUdeviceptr)nocuda_addresses(bytes);
  return *p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
API CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes) {
  nocuda_free_addresses((void *)p, bytes);
  return CUDA_SUCCESS;
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *, unsigned long long) {
  if (!nocuda_reserve(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard<std::mutex> guard(lock);
  chunks[*handle = next_chunk++] = bytes;
  return CUDA_SUCCESS;
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = chunks.find(handle);
  if (found == chunks.end()) return CUDA_ERROR_INVALID_VALUE;
  nocuda_release(found->second);
  chunks.erase(found);
  return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr p) {  // as Triton asks
  if (attribute != CU_POINTER_ATTRIBUTE_DEVICE_POINTER) {
    nocuda_refuse("cuPointerGetAttribute");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  *(CUdeviceptr *)out = p;
  return nocuda_on_device((void *)p) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- device and context ------------------------------------------------------------------------------------------
API CUresult cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
API CUresult cuDeviceGetCount(int *count) { *count = 1; return CUDA_SUCCESS; }
API CUresult cuDeviceGet(CUdevice *device, int) { *device = 0; return CUDA_SUCCESS; }
API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice) { *bytes = card().memory_mib << 20; return CUDA_SUCCESS; }
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = card().major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = card().minor; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = card().multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = card().threads_per_multiprocessor; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = card().blocks_per_multiprocessor; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = card().shared_per_block; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = card().l2_bytes; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = card().clock_khz; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = card().memory_clock_khz; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
    default: *value = 0;  // a capability that the card is not said to have
  }
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)CONTEXT; return CUDA_SUCCESS; }
API CUresult cuCtxPopCurrent_v2(CUcontext *context) { if (context) *context = (CUcontext)CONTEXT; return CUDA_SUCCESS; }
API CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
API CUresult cuCtxGetLimit(size_t *value, CUlimit) { *value = 1024; return CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) { *context = (CUcontext)CONTEXT; return CUDA_SUCCESS; }
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
API CUresult cuStreamGetCtx(CUstream, CUcontext *context) { *context = (CUcontext)CONTEXT; return CUDA_SUCCESS; }

// ---- errors, and functions by name -------------------------------------------------------------------------------
API CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "refused by the no-op CUDA driver (see stderr)";
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }
API CUresult cuGetExportTable(const void **table, const CUuuid *) { *table = nullptr; return CUDA_ERROR_NOT_FOUND; }

API void *nocuda_driver_function(const char *name) {
  static void *self = [] {
    Dl_info here;
    dladdr((void *)nocuda_driver_function, &here);
    return dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  void *found = dlsym(self, (std::string(name) + "_v2").c_str());
  return found ? found : dlsym(self, name);
}
API CUresult cuGetProcAddress_v2(const char *name, void **function, int, cuuint64_t, CUdriverProcAddressQueryResult *status) {
  *function = nocuda_driver_function(name);
  if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
#undef cuGetProcAddress
API CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

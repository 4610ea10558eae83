// libcudart: device properties, memory, copies, streams and events of a GPU whose kernels do nothing.
#include <cuda_runtime_api.h>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include "nocuda.h"

namespace {
std::mutex lock;
std::map<char *, size_t> pinned;  // host memory: address -> bytes
thread_local cudaError_t last_error = cudaSuccess;
cudaError_t fail(cudaError_t error) { return last_error = error; }
void *new_handle() {
  static std::atomic<size_t> serial{0x1000};
  return (void *)(serial += 16);
}
}  // namespace

// ---- device ------------------------------------------------------------------------------------------------------
API cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
API cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
API cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice); }
API cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
API cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) { *can = 0; return cudaSuccess; }
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
API cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int) { snprintf(id, bytes, "0000:01:00.0"); return cudaSuccess; }

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
  const Card &c = card();
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", c.name.c_str());
  memcpy(p->uuid.bytes, "nocuda-no-device", 16);
  p->totalGlobalMem = c.memory_mib * MIB;
  p->major = c.major;
  p->minor = c.minor;
  p->multiProcessorCount = c.multiprocessors;
  p->maxThreadsPerMultiProcessor = c.threads_per_multiprocessor;
  p->maxBlocksPerMultiProcessor = c.blocks_per_multiprocessor;
  p->sharedMemPerMultiprocessor = c.shared_per_multiprocessor;
  p->sharedMemPerBlockOptin = c.shared_per_block;
  p->l2CacheSize = c.l2_bytes;
  p->memoryBusWidth = c.memory_bus_bits;
  p->clusterLaunch = c.major >= 9;
  // The same on every GPU since compute capability 7.5.
  p->sharedMemPerBlock = 49152;
  p->reservedSharedMemPerBlock = c.major >= 8 ? 1024 : 0;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->pciBusID = 1;
  p->asyncEngineCount = 3;
  p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = p->localL1CacheSupported = p->managedMemory = p->cooperativeLaunch = 1;
  p->hostRegisterSupported = p->memoryPoolsSupported = p->concurrentManagedAccess = p->computePreemptionSupported = 1;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, 0);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = p.reservedSharedMemPerBlock; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerBlock; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrClockRate: *value = card().clock_khz; break;
    case cudaDevAttrMemoryClockRate: *value = card().memory_clock_khz; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrTextureAlignment: *value = p.textureAlignment; break;
    case cudaDevAttrAsyncEngineCount: *value = p.asyncEngineCount; break;
    case cudaDevAttrCooperativeLaunch: case cudaDevAttrUnifiedAddressing: case cudaDevAttrConcurrentKernels:
    case cudaDevAttrManagedMemory: case cudaDevAttrStreamPrioritiesSupported: case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    case cudaDevAttrHostNativeAtomicSupported: case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables: *value = 0; break;
    default: {
      char name[64];
      snprintf(name, sizeof name, "cudaDeviceGetAttribute(%d)", int(attribute));
      nocuda_refuse(name);
      return fail(cudaErrorNotSupported);
    }
  }
  return cudaSuccess;
}

// ---- memory ------------------------------------------------------------------------------------------------------
API cudaError_t cudaMalloc(void **p, size_t bytes) {
  *p = bytes ? nocuda_allocate(bytes) : nullptr;
  return *p || !bytes ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
API cudaError_t cudaFree(void *p) { return !p || nocuda_free(p) ? cudaSuccess : fail(cudaErrorInvalidValue); }
API cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t) { return cudaMalloc(p, bytes); }
API cudaError_t cudaFreeAsync(void *p, cudaStream_t) { return cudaFree(p); }
API cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned) { return cudaMalloc(p, bytes); }
API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  *total = card().memory_mib * MIB;
  *free_bytes = nocuda_capacity() - nocuda_used();
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int) { *pool = (cudaMemPool_t)0x77; return cudaSuccess; }
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *value) { *(size_t *)value = nocuda_used(); return cudaSuccess; }
API cudaError_t cudaGetSymbolAddress(void **p, const void *) {
  static void *page = nocuda_addresses(PAGE);
  *p = page;
  return cudaSuccess;
}

API cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
  if (posix_memalign(p, 4096, bytes ? bytes : 1)) return fail(cudaErrorMemoryAllocation);
  std::lock_guard<std::mutex> guard(lock);
  pinned[(char *)*p] = bytes;
  return cudaSuccess;
}
API cudaError_t cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, 0); }
API cudaError_t cudaFreeHost(void *p) {
  std::lock_guard<std::mutex> guard(lock);
  if (pinned.erase((char *)p)) free(p);
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *p) {
  memset(attributes, 0, sizeof *attributes);
  if (nocuda_on_device(p)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->devicePointer = (void *)p;
    return cudaSuccess;
  }
  attributes->hostPointer = (void *)p;
  std::lock_guard<std::mutex> guard(lock);
  auto after = pinned.upper_bound((char *)p);
  if (after != pinned.begin() && (char *)p < std::prev(after)->first + std::prev(after)->second) {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = (void *)p;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -1;
  }
  return cudaSuccess;
}

// A copy to the host returns zeros, because the kernels that would have written something else did nothing.
API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
  if (nocuda_on_device(to)) return cudaSuccess;
  if (nocuda_on_device(from)) memset(to, 0, bytes);
  else memmove(to, from, bytes);
  return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) { return cudaMemcpy(to, from, bytes, kind); }
API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t) {
  for (size_t row = 0; row < height; row++) cudaMemcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind);
  return cudaSuccess;
}
API cudaError_t cudaMemset(void *p, int value, size_t bytes) {
  if (!nocuda_on_device(p)) memset(p, value, bytes);
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t) { return cudaMemset(p, value, bytes); }

// ---- streams and events: all work is done when it is queried -----------------------------------------------------
API cudaError_t cudaStreamCreate(cudaStream_t *stream) { *stream = (cudaStream_t)new_handle(); return cudaSuccess; }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) { return cudaStreamCreate(stream); }
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) { return cudaStreamCreate(stream); }
API cudaError_t cudaStreamGetPriority(cudaStream_t, int *priority) { *priority = 0; return cudaSuccess; }
API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) { *status = cudaStreamCaptureStatusNone; return cudaSuccess; }
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                         const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  if (graph) *graph = nullptr;
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(*mode, current);
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t *event) { *event = (cudaEvent_t)new_handle(); return cudaSuccess; }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { return cudaEventCreate(event); }
API cudaError_t cudaProfilerStart() { return cudaSuccess; }
API cudaError_t cudaProfilerStop() { return cudaSuccess; }
API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t) { *milliseconds = 1; return cudaSuccess; }

API cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t call, void *data) { call(data); return cudaSuccess; }
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void *data, unsigned) {
  call(stream, cudaSuccess, data);
  return cudaSuccess;
}

// ---- errors, and the driver's functions by name ------------------------------------------------------------------
API cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
API cudaError_t cudaPeekAtLastError() { return last_error; }
API const char *cudaGetErrorName(cudaError_t error) { return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError"; }
API const char *cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  if (error == cudaSuccess) return "no error";
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  text = std::string("refused by the no-op CUDA runtime: ") + nocuda_refused();
  return text.c_str();
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *status) {
  *function = nocuda_driver_function(name);
  if (status) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function ? cudaSuccess : fail(cudaErrorNotSupported);
}

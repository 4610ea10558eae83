// libcudnn: descriptors, heuristics and plans come from the real library, which gets the GPU's properties instead of a
// handle (cuDNN 9.8 and later: CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR). What runs on a device does nothing.
#include "cudnn.h"
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace {
// From cudnn_graph_v9.h: descriptors, their attributes, and types of attributes.
enum { ENGINE = 2, HEURISTICS = 4, PLAN = 5, DEVICE_PROPERTIES = 38 };
enum { PLAN_HANDLE = 400, PLAN_DEVICE = 407, HEURISTICS_DEVICE = 204, GRAPH_HANDLE = 800, ENGINE_DEVICE = 1307, DEVICE_HANDLE = 2701, DEVICE_JSON = 2702 };
enum { TYPE_BACKEND_DESCRIPTOR = 15, TYPE_CHAR = 24 };
std::mutex lock;
std::unordered_map<Descriptor, int> kinds;
struct FakeHandle { void *stream; };

std::string properties_json() {
  const Card &c = card();
  std::string json = "{\"cudaDeviceId\":0,\"smCountOrigin\":0,\"warpSize\":32,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
      "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"maxThreadsPerBlock\":1024,\"regsPerBlock\":65536,"
      "\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,\"oversizedSharedMemoryPerBlock\":0";
  auto add = [&](const char *key, size_t value) { json += std::string(",\"") + key + "\":" + std::to_string(value); };
  add("deviceVer", c.major * 100 + c.minor * 10);
  add("driverVer", ask_cudnn("cudnnGetCudartVersion"));
  add("totalGlobalMem", c.memory_mib * MIB);
  add("multiProcessorCount", c.multiprocessors);
  add("maxSharedMemoryPerBlockOptin", c.shared_per_block);
  add("reservedSharedMemoryPerBlock", c.major >= 8 ? 1024 : 0);
  add("maxCtasPerSM", c.blocks_per_multiprocessor);
  add("maxThreadsPerSM", c.threads_per_multiprocessor);
  add("smClockRateKHz", c.clock_khz);
  add("memClockRateKHz", c.memory_clock_khz);
  add("l2CacheSize", c.l2_bytes);
  return json + ",\"deviceName\":\"" + c.name + "\"}";
}

Descriptor device_properties() {
  static Descriptor made = [] {
    const std::string json = properties_json();
    Descriptor d = nullptr;
    int error = ask_cudnn("cudnnBackendCreateDescriptor", int(DEVICE_PROPERTIES), &d);
    if (!error) error = ask_cudnn("cudnnBackendSetAttribute", d, int(DEVICE_JSON), int(TYPE_CHAR), int64_t(json.size() + 1), (const void *)json.c_str());
    if (!error) error = ask_cudnn("cudnnBackendFinalize", d);
    if (error) {
      std::fprintf(stderr, "nocuda: cuDNN rejects the GPU's properties: %d\n", error);
      std::abort();
    }
    return d;
  }();
  return made;
}
}  // namespace

API void *nocuda_cudnn(const char *symbol) {
  static void *library = dlopen(getenv("NOCUDA_CUDNN"), RTLD_LAZY | RTLD_LOCAL);
  void *found = library ? dlsym(library, symbol) : nullptr;
  if (!found) {
    std::fprintf(stderr, "nocuda: the wheel's cuDNN has no %s: %s\n", symbol, dlerror());
    std::abort();
  }
  return found;
}

API int cudnnCreate(Handle *handle) { *handle = new FakeHandle(); return 0; }
API int cudnnDestroy(Handle handle) { delete (FakeHandle *)handle; return 0; }
API int cudnnSetStream(Handle handle, void *stream) { ((FakeHandle *)handle)->stream = stream; return 0; }
API int cudnnGetStream(Handle handle, void **stream) { *stream = ((FakeHandle *)handle)->stream; return 0; }

API int cudnnBackendCreateDescriptor(int kind, Descriptor *d) {
  const int error = ask_cudnn("cudnnBackendCreateDescriptor", kind, d);
  std::lock_guard<std::mutex> guard(lock);
  if (!error) kinds[*d] = kind;
  return error;
}
API int cudnnBackendDestroyDescriptor(Descriptor d) {
  {
    std::lock_guard<std::mutex> guard(lock);
    kinds.erase(d);
  }
  return ask_cudnn("cudnnBackendDestroyDescriptor", d);
}
API int cudnnBackendSetAttribute(Descriptor d, int name, int type, int64_t count, const void *value) {
  if (name == GRAPH_HANDLE || name == PLAN_HANDLE || name == DEVICE_HANDLE) return 0;  // the card's properties stand in for it
  return ask_cudnn("cudnnBackendSetAttribute", d, name, type, count, value);
}
API int cudnnBackendFinalize(Descriptor d) {
  int kind = -1;
  {
    std::lock_guard<std::mutex> guard(lock);
    auto found = kinds.find(d);
    if (found != kinds.end()) kind = found->second;
  }
  const int device = kind == HEURISTICS ? HEURISTICS_DEVICE : kind == PLAN ? PLAN_DEVICE : kind == ENGINE ? ENGINE_DEVICE : 0;
  if (device) {
    Descriptor properties = device_properties();
    const int error = ask_cudnn("cudnnBackendSetAttribute", d, device, int(TYPE_BACKEND_DESCRIPTOR), int64_t(1), (const void *)&properties);
    if (error) return error;
  }
  return ask_cudnn("cudnnBackendFinalize", d);
}
API int cudnnBackendExecute(Handle, Descriptor, Descriptor) { return 0; }

// Batch norm's sizes need a handle. Its ops are CUDNN_BATCHNORM_OPS_BN, which takes no reserve space by cuDNN's documentation;
// the workspace is unknown, and reported as 0 (README).
API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(Handle, int, int, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, size_t *bytes) { *bytes = 0; return 0; }
API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(Handle, int, int, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, Descriptor, size_t *bytes) { *bytes = 0; return 0; }
API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(Handle, int, int, Descriptor, Descriptor, size_t *bytes) { *bytes = 0; return 0; }
// A rule without a source: 6 bytes per resident thread of the GPU (README).
API int cudnnDropoutGetStatesSize(Handle, size_t *bytes) { *bytes = size_t(card().multiprocessors) * card().threads_per_multiprocessor * 24; return 0; }

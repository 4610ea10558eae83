// libcudart's kernels: registered, queried for their limits, launched without effect.
#include <cuda_runtime_api.h>
#include <algorithm>
#include <cstring>
#include "nocuda.h"

namespace {
const int REGISTERS = 32;  // of a thread, of every kernel: the real number is in the code that is not looked into
struct Launch { dim3 grid, block; size_t shared; cudaStream_t stream; };
thread_local Launch pending;
}  // namespace

API void **__cudaRegisterFatBinary(void *) { static void *handle[4]; return handle; }
API void __cudaRegisterFatBinaryEnd(void **) {}
API void __cudaUnregisterFatBinary(void **) {}
API void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
API void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *) {}
API char __cudaInitModule(void **) { return 1; }

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  pending = {grid, block, shared, stream};
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = pending.grid;
  *block = pending.block;
  *shared = pending.shared;
  *(cudaStream_t *)stream = pending.stream;
  return cudaSuccess;
}
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) { *kernel = (cudaKernel_t)function; return cudaSuccess; }
API cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaLaunchCooperativeKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *, void **) { return cudaSuccess; }

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = REGISTERS;
  // torch's wheels have no code for 8.9 (torch.cuda.get_arch_list()): such a GPU runs that for 8.6, and CUB rejects 8.9.
  const int minor = card().major == 8 && card().minor == 9 ? 6 : card().minor;
  attributes->binaryVersion = attributes->ptxVersion = card().major * 10 + minor;
  attributes->maxDynamicSharedSizeBytes = card().shared_per_block;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int threads, size_t shared, unsigned) {
  const Card &c = card();
  *blocks = c.blocks_per_multiprocessor;
  if (threads > 0) *blocks = std::min({*blocks, c.threads_per_multiprocessor / threads, 65536 / (REGISTERS * threads)});
  if (shared) *blocks = std::min(*blocks, c.shared_per_multiprocessor / int(shared + 1024));
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

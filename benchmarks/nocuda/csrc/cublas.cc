// libcublas and libcublasLt: handles and modes; products are generated and do nothing; Lt offers one algorithm, without workspace.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include "nocuda.h"
// The few types by hand: the wheels' headers pull in half precision, which needs nvcc.
typedef int Status;
typedef void *Handle;
struct HeuristicResult { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };
static int math_mode = 0, pointer_mode = 0;  // the defaults: CUBLAS_DEFAULT_MATH, CUBLAS_POINTER_MODE_HOST

static Status make(Handle *handle) { *handle = calloc(1, 1024); return 0; }
static Status unmake(Handle handle) { free(handle); return 0; }
API Status cublasCreate_v2(Handle *handle) { return make(handle); }
API Status cublasDestroy_v2(Handle handle) { return unmake(handle); }
API Status cublasGetMathMode(Handle, int *mode) { *mode = math_mode; return 0; }
API Status cublasSetMathMode(Handle, int mode) { math_mode = mode; return 0; }
API Status cublasGetPointerMode_v2(Handle, int *mode) { *mode = pointer_mode; return 0; }
API Status cublasSetPointerMode_v2(Handle, int mode) { pointer_mode = mode; return 0; }
API const char *cublasGetStatusString(Status) { return "refused by the no-op cuBLAS (see stderr)"; }
API const char *cublasGetStatusName(Status) { return "refused by the no-op cuBLAS (see stderr)"; }

API size_t cublasLtGetVersion() { return CUBLAS_VER_MAJOR * 10000 + CUBLAS_VER_MINOR * 100 + CUBLAS_VER_PATCH; }
API size_t cublasLtGetCudartVersion() { return CUDART_VERSION; }
API const char *cublasLtGetStatusString(Status) { return "refused by the no-op cuBLASLt (see stderr)"; }
API Status cublasLtCreate(Handle *handle) { return make(handle); }
API Status cublasLtDestroy(Handle handle) { return unmake(handle); }
API Status cublasLtMatmulDescCreate(Handle *made, int, int) { return make(made); }
API Status cublasLtMatmulDescDestroy(Handle made) { return unmake(made); }
API Status cublasLtMatmulPreferenceCreate(Handle *made) { return make(made); }
API Status cublasLtMatmulPreferenceDestroy(Handle made) { return unmake(made); }
API Status cublasLtMatrixLayoutCreate(Handle *made, int, uint64_t, uint64_t, int64_t) { return make(made); }
API Status cublasLtMatrixLayoutDestroy(Handle made) { return unmake(made); }
API Status cublasLtMatmulAlgoGetHeuristic(Handle, Handle, Handle, Handle, Handle, Handle, Handle, int wanted, HeuristicResult *results, int *found) {
  memset(results, 0, sizeof *results * wanted);
  results[0].waves = 1;
  *found = 1;
  return 0;
}

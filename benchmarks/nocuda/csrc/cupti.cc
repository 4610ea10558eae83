// libcupti: nothing runs on the device that could be traced, so most functions do nothing or fail, as generated.
// CUPTI's own cuptiGetResultString calls itself without end where its driver is missing (CUDA 13.2).
#include <cupti.h>
#include "nocuda.h"

API CUptiResult cuptiGetResultString(CUptiResult, const char **text) {
  *text = "refused by the no-op runtime (see stderr)";
  return CUPTI_SUCCESS;
}

// The wheel's own cuDNN behind the stand-in, and the types of its C interface that are used here.
#pragma once
#include <dlfcn.h>
#include "nocuda.h"
typedef void *Descriptor;
typedef void *Handle;

API void *nocuda_cudnn(const char *symbol);  // a function of the real library; a missing one ends the process

template <class... Arguments>
int ask_cudnn(const char *symbol, Arguments... arguments) {
  return ((int (*)(Arguments...))nocuda_cudnn(symbol))(arguments...);
}

// What the stubs share. The definitions are in libcuda's (memory.cc), which is loaded first.
#pragma once
#include <cstddef>
#include "card.h"
#define API extern "C" __attribute__((visibility("default")))

API void nocuda_refuse(const char *symbol);      // say that a call is refused, and remember by which symbol
API const char *nocuda_refused();                // the symbol refused last, or an empty text
API void *nocuda_driver_function(const char *);  // a function of the driver, null where there is none

API void *nocuda_allocate(size_t bytes);         // memory of the card at an address; null when the card is full
API bool nocuda_free(void *);                    // false where nothing was allocated
API bool nocuda_reserve(size_t bytes);           // memory of the card without an address; false when the card is full
API void nocuda_release(size_t bytes);
API void *nocuda_addresses(size_t bytes);        // addresses without memory
API void nocuda_free_addresses(void *, size_t bytes);
API bool nocuda_on_device(const void *);
API size_t nocuda_capacity();                    // what the card has beside its context
API size_t nocuda_used();

static const size_t MIB = 1 << 20;
static const size_t PAGE = 2 * MIB;              // the driver's granularity

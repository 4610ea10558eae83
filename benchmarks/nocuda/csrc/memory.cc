// The GPU's memory: bytes are counted in pages of 2 MiB; addresses come from a range that is never backed by memory.
#include <dlfcn.h>
#include <sys/mman.h>
#include <map>
#include <mutex>
#include <unordered_map>
#include "nocuda.h"

namespace {
const size_t RANGE = size_t(1) << 42;
std::mutex lock;
char *range = nullptr;
size_t used = 0;
// Addresses as the driver of an H100 hands them out: reservations of whole 32 MiB,
// each below the previous ones; an allocation lies at the lowest free address of a reservation.
const size_t RESERVATION = size_t(32) << 20;
using Ranges = std::map<size_t, size_t>;    // offset -> bytes
Ranges reservations, unused, gaps;          // unused: free parts of reservations; gaps: returned reservations
std::unordered_map<void *, size_t> blocks;  // allocated: address -> bytes in whole pages
thread_local std::string refused;

size_t rounded(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }
size_t pages(size_t bytes) { return rounded(bytes, PAGE); }

void open_range() {
  if (range) return;
  void *found = mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) {
    std::perror("nocuda: mmap");
    std::abort();
  }
  range = (char *)rounded((size_t)found, RESERVATION);
  gaps[0] = RANGE - RESERVATION;
}

void reserve(size_t bytes) {  // at the end of the highest gap that fits
  const size_t whole = rounded(bytes, RESERVATION);
  for (auto gap = gaps.rbegin(); gap != gaps.rend(); ++gap) {
    if (gap->second < whole) continue;
    const size_t start = gap->first + gap->second - whole;
    if (!(gap->second -= whole)) gaps.erase(start);
    reservations[start] = unused[start] = whole;
    return;
  }
}

void *place(size_t bytes) {  // first fit
  for (auto hole = unused.begin(); hole != unused.end(); ++hole) {
    if (hole->second < bytes) continue;
    const size_t offset = hole->first, rest = hole->second - bytes;
    unused.erase(hole);
    if (rest) unused[offset + bytes] = rest;
    return range + offset;
  }
  return nullptr;
}

void *take(size_t bytes) {
  open_range();
  if (void *address = place(bytes)) return address;
  reserve(bytes);
  return place(bytes);
}

void join(Ranges &ranges, size_t &offset, size_t &bytes, size_t low, size_t high) {  // with the neighbours in between
  auto next = ranges.lower_bound(offset);
  if (next != ranges.end() && next->first == offset + bytes && next->first < high) {
    bytes += next->second;
    next = ranges.erase(next);
  }
  if (next == ranges.begin() || offset == low) return;
  auto before = std::prev(next);
  if (before->first + before->second != offset) return;
  offset = before->first;
  bytes += before->second;
  ranges.erase(before);
}

void give(void *address, size_t bytes) {
  size_t offset = (char *)address - range;
  auto whole = std::prev(reservations.upper_bound(offset));
  join(unused, offset, bytes, whole->first, whole->first + whole->second);
  if (bytes < whole->second) {
    unused[offset] = bytes;
    return;
  }
  reservations.erase(whole);
  join(gaps, offset, bytes, 0, RANGE);
  gaps[offset] = bytes;
}
}  // namespace

API void nocuda_refuse(const char *symbol) {
  refused = symbol;
  std::fprintf(stderr, "nocuda: %s would have to write an output that is unknown here; the call fails\n", symbol);
}
API const char *nocuda_refused() { return refused.c_str(); }

API size_t nocuda_capacity() { return (card().memory_mib - card().context_mib) * MIB; }
API size_t nocuda_used() { return used; }
API bool nocuda_on_device(const void *p) { return range && (char *)p >= range && (char *)p < range + RANGE; }

API bool nocuda_reserve(size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  if (used + bytes > nocuda_capacity()) return false;
  used += bytes;
  return true;
}
API void nocuda_release(size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  used -= bytes;
}
API void *nocuda_addresses(size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  return take(pages(bytes));
}
API void nocuda_free_addresses(void *address, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  give(address, pages(bytes));
}
API void *nocuda_allocate(size_t bytes) {
  bytes = pages(bytes);
  if (!nocuda_reserve(bytes)) return nullptr;
  std::lock_guard<std::mutex> guard(lock);
  void *address = take(bytes);
  if (address) blocks[address] = bytes;
  return address;
}
API bool nocuda_free(void *address) {
  std::lock_guard<std::mutex> guard(lock);
  auto found = blocks.find(address);
  if (found == blocks.end()) return false;
  give(address, found->second);
  used -= found->second;
  blocks.erase(found);
  return true;
}

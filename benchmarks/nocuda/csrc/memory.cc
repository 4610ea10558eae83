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
std::map<size_t, size_t> holes;             // free addresses: offset -> bytes
std::unordered_map<void *, size_t> blocks;  // allocated: address -> bytes in whole pages
thread_local std::string refused;

size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

void open_range() {
  if (range) return;
  void *found = mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) {
    std::perror("nocuda: mmap");
    std::abort();
  }
  range = (char *)pages((size_t)found);
  holes[0] = RANGE - PAGE;
}

void *take(size_t bytes) {  // first fit
  open_range();
  for (auto hole = holes.begin(); hole != holes.end(); ++hole) {
    if (hole->second < bytes) continue;
    const size_t offset = hole->first, rest = hole->second - bytes;
    holes.erase(hole);
    if (rest) holes[offset + bytes] = rest;
    return range + offset;
  }
  return nullptr;
}

void give(void *address, size_t bytes) {  // joined with the holes on both sides
  const size_t offset = (char *)address - range;
  auto next = holes.lower_bound(offset);
  if (next != holes.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = holes.erase(next);
  }
  if (next != holes.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  holes[offset] = bytes;
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

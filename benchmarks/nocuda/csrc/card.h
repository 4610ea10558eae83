// The simulated GPU: the JSON file that the variable NOCUDA_CARD names, read once.
#pragma once
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

struct Card {
  std::string name;
  int major, minor, multiprocessors, threads_per_multiprocessor, blocks_per_multiprocessor;
  int shared_per_multiprocessor, shared_per_block, l2_bytes, clock_khz, memory_clock_khz, memory_bus_bits;
  size_t memory_mib, context_mib;
};

// The text after a key of a flat JSON object. A missing key ends the process, because no default would be correct.
inline const char *json_value(const std::string &text, const std::string &key) {
  size_t at = text.find("\"" + key + "\"");
  if (at == std::string::npos || (at = text.find(':', at)) == std::string::npos) {
    std::fprintf(stderr, "nocuda: the card's file has no %s\n", key.c_str());
    std::abort();
  }
  return text.c_str() + text.find_first_not_of(" \t\n", at + 1);
}

inline Card read_card() {
  const char *path = std::getenv("NOCUDA_CARD");
  std::ifstream file(path ? path : "");
  if (!file) {
    std::fprintf(stderr, "nocuda: NOCUDA_CARD names no file that can be read\n");
    std::abort();
  }
  std::stringstream all;
  all << file.rdbuf();
  const std::string text = all.str();
  auto number = [&](const char *key) { return std::strtoll(json_value(text, key), nullptr, 10); };
  const char *quoted = json_value(text, "name") + 1;
  Card card{std::string(quoted, std::string(quoted).find('"'))};
  card.major = number("major");
  card.minor = number("minor");
  card.multiprocessors = number("multiprocessors");
  card.threads_per_multiprocessor = number("threads_per_multiprocessor");
  card.blocks_per_multiprocessor = number("blocks_per_multiprocessor");
  card.shared_per_multiprocessor = number("shared_per_multiprocessor");
  card.shared_per_block = number("shared_per_block");
  card.l2_bytes = number("l2_bytes");
  card.clock_khz = number("clock_khz");
  card.memory_clock_khz = number("memory_clock_khz");
  card.memory_bus_bits = number("memory_bus_bits");
  card.memory_mib = number("memory_mib");
  card.context_mib = number("context_mib");
  return card;
}

inline const Card &card() {
  static const Card read = read_card();
  return read;
}

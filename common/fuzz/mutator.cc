#include "common/fuzz/mutator.h"

#include <algorithm>
#include <cstring>

namespace ringd {
namespace {

// Limits of the widths, and their neighbours.
constexpr uint64_t kInteresting[] = {
    0,          1,          2,          0x7f,       0x80,       0xff,
    0x7fff,     0x8000,     0xffff,     0x10000,    0x7fffffff, 0x80000000,
    0xffffffff, 1ull << 47, 1ull << 62, 1ull << 63, ~0ull,      ~0ull - 1,
};

}  // namespace

FuzzBytes FuzzMutator::Next(const std::vector<FuzzBytes>& inputs) {
  FuzzBytes bytes = inputs[Below(inputs.size())];
  for (size_t changes = 1 + Below(8); changes > 0; --changes) Change(inputs, &bytes);
  if (bytes.size() > kMaxFuzzBytes) bytes.resize(kMaxFuzzBytes);
  return bytes;
}

void FuzzMutator::Change(const std::vector<FuzzBytes>& inputs, FuzzBytes* bytes) {
  const size_t place = Below(bytes->size());
  const size_t rest = bytes->size() - place;
  const auto at = bytes->begin() + static_cast<std::ptrdiff_t>(place);
  switch (Below(7)) {
    case 0:
      if (rest > 0) *at ^= static_cast<uint8_t>(1u << Below(8));
      break;
    case 1:
      if (rest > 0) *at = static_cast<uint8_t>(random_());
      break;
    case 2: {
      const uint64_t value = kInteresting[Below(std::size(kInteresting))];
      const size_t width = std::min(rest, size_t{1} << Below(4));
      if (width > 0) std::memcpy(&*at, &value, width);
      break;
    }
    case 3:
      bytes->erase(at, at + static_cast<std::ptrdiff_t>(std::min(rest, 1 + Below(16))));
      break;
    case 4: {
      FuzzBytes added(1 + Below(16));
      for (uint8_t& byte : added) byte = static_cast<uint8_t>(random_());
      bytes->insert(at, added.begin(), added.end());
      break;
    }
    case 5: {  // A part again.
      const FuzzBytes copy(at, at + static_cast<std::ptrdiff_t>(std::min(rest, 1 + Below(160))));
      const auto to = bytes->begin() + static_cast<std::ptrdiff_t>(Below(bytes->size() + 1));
      bytes->insert(to, copy.begin(), copy.end());
      break;
    }
    default: {  // Go on as another one does.
      const FuzzBytes& other = inputs[Below(inputs.size())];
      bytes->resize(place);
      const auto from = other.begin() + static_cast<std::ptrdiff_t>(Below(other.size() + 1));
      bytes->insert(bytes->end(), from, other.end());
    }
  }
}

}  // namespace ringd

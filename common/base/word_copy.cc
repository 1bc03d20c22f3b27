#include "common/base/word_copy.h"

#include <cstdint>

namespace ringd {
namespace {

using Word = uint32_t __attribute__((may_alias));

}  // namespace

void LoadWords(void* to, const void* shared, size_t bytes) {
  auto* const target = static_cast<Word*>(to);
  const auto* const words = static_cast<const Word*>(shared);
  for (size_t i = 0; i < bytes / sizeof(Word); ++i) {
    target[i] = __atomic_load_n(words + i, __ATOMIC_RELAXED);
  }
}

void StoreWords(void* shared, const void* from, size_t bytes) {
  auto* const words = static_cast<Word*>(shared);
  const auto* const source = static_cast<const Word*>(from);
  for (size_t i = 0; i < bytes / sizeof(Word); ++i) {
    __atomic_store_n(words + i, source[i], __ATOMIC_RELAXED);
  }
}

}  // namespace ringd

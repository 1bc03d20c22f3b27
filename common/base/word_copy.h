// Copies of memory that another thread or process may change meanwhile: word by word, each access
// atomic and relaxed, so that a torn copy is a value to be thrown away and not undefined behaviour.
#ifndef RINGD_COMMON_BASE_WORD_COPY_H_
#define RINGD_COMMON_BASE_WORD_COPY_H_

#include <cstddef>

namespace ringd {

// Order and whether the copy is whole: the caller's business (fences, a serial number).
// REQUIRES: aligned to 4 bytes, a multiple of 4 bytes.
void LoadWords(void* to, const void* shared, size_t bytes);
void StoreWords(void* shared, const void* from, size_t bytes);

}  // namespace ringd

#endif  // RINGD_COMMON_BASE_WORD_COPY_H_

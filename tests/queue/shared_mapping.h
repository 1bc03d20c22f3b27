// For tests with both sides of an arena in one process: all mappings of one file are one mapping.
//
// ThreadSanitizer looks at addresses. Where client and daemon each map the arena, it takes one word
// for two and sees neither a race between them nor the order that the word makes. So a test that
// links this library (it replaces mmap and munmap at link time) gets the first mapping again.
#ifndef RINGD_TESTS_QUEUE_SHARED_MAPPING_H_
#define RINGD_TESTS_QUEUE_SHARED_MAPPING_H_

namespace ringd {

// How many mappings of the file have one address now; 0 where it is not mapped. Thread-safe.
int CountMappings(int fd);

}  // namespace ringd

#endif  // RINGD_TESTS_QUEUE_SHARED_MAPPING_H_

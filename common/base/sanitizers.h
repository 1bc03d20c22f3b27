// Whether this build is instrumented, for tests that repeat themselves: fewer rounds, never none.
#ifndef RINGD_COMMON_BASE_SANITIZERS_H_
#define RINGD_COMMON_BASE_SANITIZERS_H_

namespace ringd {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace ringd

#endif  // RINGD_COMMON_BASE_SANITIZERS_H_

// The product's version, in one place: programs, wheel, protocol checks.
#ifndef RINGD_COMMON_BASE_VERSION_H_
#define RINGD_COMMON_BASE_VERSION_H_

namespace ringd {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace ringd

#endif  // RINGD_COMMON_BASE_VERSION_H_

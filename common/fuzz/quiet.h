// Fuzz targets say nothing of what they make others complain about.
#ifndef RINGD_COMMON_FUZZ_QUIET_H_
#define RINGD_COMMON_FUZZ_QUIET_H_

namespace ringd {

// Turns all logging off.
void QuietLogs();

}  // namespace ringd

#endif  // RINGD_COMMON_FUZZ_QUIET_H_

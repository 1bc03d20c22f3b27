#include "common/fuzz/quiet.h"

#include "common/log/log.h"

namespace ringd {

void QuietLogs() {
  static const bool quiet = SetLogLevels("off").ok();
  static_cast<void>(quiet);
}

}  // namespace ringd

// Starts `ringd-worker attach`.
#ifndef RINGD_CLIENT_C_LAUNCH_HELPER_H_
#define RINGD_CLIENT_C_LAUNCH_HELPER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/c/launch/launcher.h"

namespace ringd::client {

// What the helper does beyond its own node, and what it reads. As worker/main.cc has it.
struct HelperRole {
  std::vector<std::string> words;
  std::string input;
};

struct HelperAnswer {
  bool found_none =
      false;           // No cluster for this job, whose ranks are on several nodes; output: why.
  std::string output;  // What it has written.
};

// Blocks until the helper listens and has gone into the background, or has failed.
// RINGD_UNAVAILABLE: the program isn't there, or what it said.
int StartHelper(const Launch& launch, const HelperRole& role, int64_t timeout_us,
                HelperAnswer* answer);

}  // namespace ringd::client

#endif  // RINGD_CLIENT_C_LAUNCH_HELPER_H_
